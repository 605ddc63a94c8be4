#!/usr/bin/env bash
# Run a command inside the project's environment: scripts/with-env.sh [--no-java] [--maven] runtime|dev|spark-4.0|… COMMAND …
set -euo pipefail

REPO_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
# shellcheck source=scripts/bootstrap.sh
. "$REPO_ROOT/scripts/bootstrap.sh"

prepare=bootstrap
while :; do
  case "${1:-}" in
    --no-java) prepare=bootstrap_python ;;
    --maven) require_maven ;;
    *) break ;;
  esac
  shift
done
"$prepare" "$1"
# Sessions that a user starts by hand have Delta, too: spark-submit.sh and the tests name the jars themselves.
if [ "$1" = runtime ] && [ -d "$DELTA_JARS" ]; then
  export SPARK_DIST_CLASSPATH="$DELTA_JARS/*${SPARK_DIST_CLASSPATH:+:$SPARK_DIST_CLASSPATH}"
fi
shift
cd "$REPO_ROOT"
exec "$@"
