#!/usr/bin/env bash
# Runs a command and says how long it took: timed.sh NAME COMMAND...
set -uo pipefail
name=$1
shift
started=$SECONDS
"$@"
status=$?
echo "== $name: $((SECONDS - started)) s, exit status $status" >&2
exit "$status"
