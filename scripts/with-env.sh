#!/usr/bin/env bash
# Run a command inside the project's environment: scripts/with-env.sh [--no-java] [--maven] runtime|dev COMMAND …
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
shift
cd "$REPO_ROOT"
exec "$@"
