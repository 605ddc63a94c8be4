#!/usr/bin/env bash
# Usage: ./spark-submit.sh JOB [--conf FILE.toml] [--option key=value …] [--format json]
#
# Runs the command line pyspark-rocketmq of this checkout, in an environment that it makes, through Spark's spark-submit.
#
# Jobs:
#   demo           produce ordered order events, consume them into a Delta table, check that nothing
#                  is lost, doubled or out of order (on an embedded broker unless nameServers is given)
#   consume        run a message listener (module:function) as a streaming consumer into a Delta table
#   replay         read queues again, into a Delta table or another topic; no group's offsets are touched
#   publish        send the rows of a table or of files to a topic, in order by sharding key
#   offsets show   print a consumer group's progress from its offset store, with the broker's bounds
#   offsets lag    show how far a group is behind, in messages and seconds, and who holds each queue
#   offsets reset  move a group: to a position, to a time, or to where it once was
#   offsets skip   pass a group's backlog over, or a message that cannot be consumed
#   offsets clone  move a group to where another one stands
#   offsets accept-gap  let a group go on although a sink lacks rows that its offsets have passed
#   offsets history  print the changes of a group that can be gone back to
#   offsets diff   print what changed between two moments of a group, or is different in another group
#   tables compact  make few files of a Delta table's many, while queries write to it
#   simulator      run a simulated RocketMQ cluster on this machine until Ctrl-C: simulator --port 9876
#   completion     print what makes a shell complete all this: eval "$(./spark-submit.sh completion bash)"
#
# ./spark-submit.sh JOB --help lists the job's options. The first start makes .venv and fetches the Delta jars.
#
# Environment: PYTHON (Python 3.11 or newer), JAVA_HOME (Java 17 or newer), SPARK_MASTER (default local[*]).
# On a cluster also: PYSPARK_PYTHON (the executors' Python, which has the packages that ours needs; default: that of
# .venv, at the same path), SPARK_SUBMIT_ARGS (more for Spark's spark-submit, such as "--conf spark.executor.memory=4g").
# Exit codes: 0 done, 1 the job failed, 2 bad input, 3 the set-up could not be finished,
# 130 interrupted, 143 job consume ended by SIGTERM.
set -euo pipefail

REPO_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)"
# Help and hints name what was typed.
export PYSPARK_ROCKETMQ_PROGRAM="./spark-submit.sh"

usage() { sed -n '2,/^set -euo/{/^#/s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; }

# Whether the job can do without a JVM.
runs_without_spark() {
  local argument
  case "$1" in offsets | tables | simulator | completion) return 0 ;; esac
  for argument in "$@"; do
    [ "$argument" != --help ] || return 0
  done
  return 1
}

# A shell asks what could be typed: nothing is made for that.
if [ -n "${_PYSPARK_ROCKETMQ_COMPLETE:-}" ]; then
  [ -x "$REPO_ROOT/.venv/bin/python" ] || exit 0
  PYTHONPATH="$REPO_ROOT/connector:$REPO_ROOT" exec "$REPO_ROOT/.venv/bin/python" "$REPO_ROOT/jobs/main.py"
fi

case "${1:-}" in
  -h | --help | help)
    usage
    exit 0
    ;;
  "")
    usage >&2
    exit 2
    ;;
esac

# shellcheck source=scripts/bootstrap.sh
. "$REPO_ROOT/scripts/bootstrap.sh"

if runs_without_spark "$@"; then
  bootstrap_python runtime
  exec "$VENV/bin/python" "$REPO_ROOT/jobs/main.py" "$@"
fi

bootstrap runtime
jars="$(printf '%s,' "$DELTA_JARS"/*.jar)"
arguments=(
  --master "${SPARK_MASTER:-local[*]}"
  --properties-file "$REPO_ROOT/conf/spark-defaults.conf"
  --jars "${jars%,}"
)
if ! is_local; then
  archive="$("$VENV/bin/python" "$REPO_ROOT/scripts/zip_packages.py" "$REPO_ROOT" "$CACHE/py-files")"
  arguments+=(--py-files "$archive")
fi
# The job writes to Spark, which passes it on: it cannot see that its output goes to a terminal. The names are those of rich.
if [ -t 1 ]; then
  export TTY_COMPATIBLE="${TTY_COMPATIBLE:-1}" COLUMNS="${COLUMNS:-$(tput cols 2>/dev/null || echo 80)}"
fi
read -r -a more <<<"${SPARK_SUBMIT_ARGS:-}"
exec "$SPARK_HOME/bin/spark-submit" "${arguments[@]}" ${more[@]+"${more[@]}"} "$REPO_ROOT/jobs/main.py" "$@"
