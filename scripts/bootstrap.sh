# shellcheck shell=bash
# Make what a command needs, once, and set the environment up. Source it, then call `bootstrap SET`.
#
# Afterwards .venv holds the locked packages of requirements/SET.txt, .cache/delta-jars-<version> the Delta jars,
# and PATH, PYTHONPATH, SPARK_HOME, PYSPARK_PYTHON … point at them. What is already there is neither checked over the
# network nor made again. Progress and errors go to stderr.
#
# A SET is runtime, dev, or another Spark: spark-4.0, spark-4.1, spark-4.3, with an environment of its own, .cache/SET.
#
# Exit codes: 2 a missing or too old Python, Java or Maven; 3 a set-up that could not be finished (no network).

readonly REPO_ROOT="${REPO_ROOT:?set REPO_ROOT to the repository before sourcing bootstrap.sh}"
readonly CACHE="$REPO_ROOT/.cache"

_say() { printf '%s\n' "$*" >&2; }

# _refuse CODE SENTENCE: the one sentence a user gets.
_refuse() {
  local code="$1"
  shift
  _say "$*"
  exit "$code"
}

# _locked SET PACKAGE: its version there, or nothing.
_locked() { sed -n "s/^$2==\([0-9.]*\).*/\1/p" "$REPO_ROOT/requirements/$1.txt"; }

# _use SET: where its environment and its Delta jars are. VENV_INCOMPLETE exists while VENV is being filled: a leftover
# means that an earlier start was interrupted.
_use() {
  local spark
  VENV="$REPO_ROOT/.venv" VENV_INCOMPLETE="$CACHE/venv-incomplete"
  case "$1" in spark-*) VENV="$CACHE/$1" VENV_INCOMPLETE="$CACHE/$1-incomplete" ;; esac
  spark="$(_locked "$1" pyspark)"
  DELTA_VERSION="$(_locked "$1" delta-spark)"
  DELTA_JARS="$CACHE/delta-jars-$DELTA_VERSION"
  # Delta's jars name their Spark, but those for Spark 4.0.
  DELTA_PACKAGE="io.delta:delta-spark_${spark%.*}_2.13:$DELTA_VERSION"
  DELTA_PACKAGE="${DELTA_PACKAGE/_4.0_/_}"
}

# _python_version EXECUTABLE: "3.11.7" and success if it is new enough and can make environments, else why not.
_python_version() {
  local answer
  answer="$("$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)" || answer=""
  case "$answer" in
    3.1[1-9].* | 3.[2-9][0-9].*) ;;
    [0-9]*) printf 'Python %s' "$answer"; return 1 ;;
    *) printf 'a command that does not run'; return 1 ;;
  esac
  if ! "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    printf 'Python %s without its venv module (on Debian and Ubuntu: package python%s-venv)' "$answer" "${answer%.*}"
    return 1
  fi
  printf '%s' "$answer"
}

_find_python() {
  local candidates candidate found tried=""
  candidates="${PYTHON:-python3.12 python3.11 python3 python3.13 python3.14}"
  if [ -n "${PYTHON:-}" ]; then
    if found="$(_python_version "$PYTHON")"; then
      BASE_PYTHON="$PYTHON"
      return
    fi
    _refuse 2 "Python 3.11 or newer is needed, but PYTHON=$PYTHON is $found; set PYTHON=/path/to/python3.11."
  fi
  for candidate in $candidates; do
    command -v "$candidate" >/dev/null 2>&1 || continue
    if found="$(_python_version "$candidate")"; then
      BASE_PYTHON="$candidate"
      return
    fi
    tried="$tried${tried:+, }$candidate is $found"
  done
  _refuse 2 "Python 3.11 or newer is needed, but ${tried:-no python3 was found on PATH};" \
    "install it, or point at one with PYTHON=/path/to/python3.11."
}

_java_executable() {
  if [ -n "${JAVA_HOME:-}" ]; then printf '%s/bin/java' "$JAVA_HOME"; else printf 'java'; fi
}

# Refuse a Java that Spark 4 cannot run on.
_check_java() {
  local java where version major
  java="$(_java_executable)"
  where="on PATH"
  [ -z "${JAVA_HOME:-}" ] || where="at JAVA_HOME=$JAVA_HOME"
  if ! command -v "$java" >/dev/null 2>&1; then
    _refuse 2 "Java 17 or newer is needed, but no java was found $where;" \
      "install it, or point at one with JAVA_HOME=/path/to/jdk-17."
  fi
  version="$("$java" -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p' | head -n 1)" || version=""
  major="${version#1.}"
  major="${major%%[!0-9]*}"
  if [ -z "$major" ] || [ "$major" -lt 17 ]; then
    _refuse 2 "Java 17 or newer is needed, but the one $where is ${version:-a command that does not run};" \
      "point at another with JAVA_HOME=/path/to/jdk-17."
  fi
}

# Maven fetches the real RocketMQ that the tests run against.
require_maven() {
  command -v mvn >/dev/null 2>&1 ||
    _refuse 2 "Maven is needed to fetch the RocketMQ broker the tests run against, but no mvn was found on PATH;" \
      "install Maven 3.6 or newer."
}

# _has_packages SET: whether .venv holds exactly this lock file, or the dev set, which includes the runtime set.
_has_packages() {
  [ ! -e "$VENV_INCOMPLETE" ] || return 1
  [ -x "$VENV/bin/python" ] || return 1
  cmp -s "$REPO_ROOT/requirements/$1.txt" "$VENV/stamps/$1"
}

_minor() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# Whether .venv can be filled up as it is: whole, running, with pip, and of the Python asked for.
_venv_is_usable() {
  [ ! -e "$VENV_INCOMPLETE" ] || return 1
  "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || return 1
  [ -z "${PYTHON:-}" ] || [ "$(_minor "$PYTHON")" = "$(_minor "$VENV/bin/python")" ]
}

_make_venv() {
  local log="$CACHE/venv.log"
  [ ! -L "$VENV" ] ||
    _refuse 3 "$VENV is a link, and the environment it leads to would be emptied to be made anew;" \
      "make it where it is, or remove the link."
  _say "Making ${VENV#"$REPO_ROOT/"} with $("$BASE_PYTHON" --version 2>&1) …"
  : >"$VENV_INCOMPLETE"
  "$BASE_PYTHON" -m venv --clear "$VENV" >"$log" 2>&1 ||
    _refuse 3 "Could not make a virtual environment in $VENV; the log is $log."
}

_no_network_in() {
  grep -qE 'NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|Name or service not known|Network is unreachable|UnknownHostException|Connection refused|ConnectException|Failed to establish a new connection|Host [^ ]+ not found|Server access error' "$1"
}

# _setup_failed WHAT LOG: say why, as far as the log tells.
_setup_failed() {
  if _no_network_in "$2"; then
    _refuse 3 "Could not $1 because the network cannot be reached; the first start needs it once, and the log is $2."
  fi
  _refuse 3 "Could not $1; the log is $2."
}

# _install SET: pip's own progress is shown, its complaints are kept for the log.
_install() {
  local requirements="requirements/$1.txt" log="$CACHE/pip-$1.log"
  _say "Installing the locked packages of $requirements into ${VENV#"$REPO_ROOT/"} …"
  : >"$VENV_INCOMPLETE"
  rm -f "$log"
  # shellcheck disable=SC2094
  "$VENV/bin/python" -m pip install --disable-pip-version-check --require-hashes --retries 2 --log "$log" \
    -r "$REPO_ROOT/$requirements" >&2 2>>"$log" || _setup_failed "install the packages of $requirements" "$log"
  "$VENV/bin/python" "$REPO_ROOT/scripts/precompile_pyspark.py"
  mkdir -p "$VENV/stamps"
  # The other set's versions may have been changed just now.
  rm -f "$VENV/stamps"/*
  cp "$REPO_ROOT/$requirements" "$VENV/stamps/$1"
  [ "$1" != dev ] || cp "$REPO_ROOT/requirements/runtime.txt" "$VENV/stamps/runtime"
  rm -f "$VENV_INCOMPLETE"
}

_ensure_packages() {
  if [ -n "${PYTHON:-}" ]; then _find_python; fi
  if _has_packages "$1" && { [ -z "${PYTHON:-}" ] || _venv_is_usable; }; then return; fi
  if ! _venv_is_usable; then
    _find_python
    _make_venv
  fi
  _install "$1"
}

# Spark's own Ivy resolves the jars, so that its mirrors and caches (~/.m2, DEFAULT_ARTIFACT_REPOSITORY) are honoured.
_ensure_delta_jars() {
  local log="$CACHE/ivy.log" part="$DELTA_JARS.part" ivy="$DELTA_JARS.ivy"
  # There is no Delta for every Spark.
  [ -n "$DELTA_VERSION" ] && [ ! -d "$DELTA_JARS" ] || return 0
  _say "Resolving the Delta jars $DELTA_PACKAGE …"
  rm -rf "$part"
  # Two thirds of the download are jars that the Spark distribution has.
  "$SPARK_HOME/bin/spark-submit" --master 'local[1]' --packages "$DELTA_PACKAGE" \
    --exclude-packages org.apache.hadoop:hadoop-client-runtime,org.apache.hadoop:hadoop-client-api \
    --conf "spark.jars.ivy=$ivy" \
    "$REPO_ROOT/scripts/collect_delta_jars.py" "$DELTA_VERSION" "$ivy/jars" "$part" >"$log" 2>&1 || _setup_failed "resolve the Delta jars" "$log"
  mv "$part" "$DELTA_JARS"
  rm -rf "$ivy"
}

# Whether Spark's executors are in the driver's own process.
is_local() {
  case "${SPARK_MASTER:-local}" in local | local\[*) ;; *) return 1 ;; esac
}

_export_environment() {
  local packages
  packages="$(echo "$VENV"/lib/python3.*/site-packages)"
  export VIRTUAL_ENV="$VENV" PATH="$VENV/bin:$PATH"
  # Each query starts some Python processes, which would all compile the same modules.
  unset PYTHONDONTWRITEBYTECODE
  # An older Spark in SPARK_HOME would be started otherwise.
  export SPARK_HOME="$packages/pyspark"
  export SPARK_CONF_DIR="$REPO_ROOT/conf"
  export PYSPARK_DRIVER_PYTHON="$VENV/bin/python"
  export PYTHONPATH="$REPO_ROOT/connector:$REPO_ROOT${PYTHONPATH:+:$PYTHONPATH}"
  if is_local; then
    export PYSPARK_PYTHON="$VENV/bin/python" SPARK_LOCAL_IP="${SPARK_LOCAL_IP:-127.0.0.1}"
  else
    # Executors are on other machines: they may have another Python, and do not reach the driver at a loopback address.
    export PYSPARK_PYTHON="${PYSPARK_PYTHON:-$VENV/bin/python}"
  fi
}

# One start at a time fills an environment; where flock is missing, do not start two first runs at once.
_lock() {
  mkdir -p "$CACHE"
  exec 9>"$CACHE/${VENV##*/}.lock"
  if command -v flock >/dev/null 2>&1; then flock 9; fi
}

_unlock() { exec 9>&-; }

# bootstrap_python SET: the packages alone, for what needs no Java.
bootstrap_python() {
  _use "$1"
  _lock
  _ensure_packages "$1"
  _unlock
  _export_environment
}

# bootstrap SET: packages, Java and the Delta jars.
bootstrap() {
  _check_java
  bootstrap_python "$1"
  _lock
  _ensure_delta_jars
  _unlock
}
