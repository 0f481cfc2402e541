#!/usr/bin/env bash
# Sets up what only the checks and tests need: setup_tests.sh check|all
#   check  the test and check tools in .venv, TypeScript in node_modules
#   all    besides: torchvision, torchaudio and torchao in folders of their own (.cache/oracle, .cache/torchao)
# ComfyUI and Chromium: scripts/setup_comfyui.sh, which needs nothing of this.
# Each part is skipped when it is there and nothing that it depends on has changed (.cache/stamps).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
mkdir -p .cache/stamps

fresh() { # NAME FILE: whether NAME was done for this file as it is
  [ "$(cat ".cache/stamps/$1" 2>/dev/null || true)" = "$(sha256sum "$2")" ]
}

done_with() { # NAME FILE
  sha256sum "$2" >".cache/stamps/$1"
}

if ! command -v npm >/dev/null; then
  echo "setup_tests: node and npm are needed to check the web part (Debian: apt-get install nodejs npm)" >&2
  exit 1
fi

if [ ! -x .venv/bin/ruff ] || ! fresh tools pyproject.toml; then
  echo "setup_tests: test and check tools" >&2
  .venv/bin/python -m pip install -q -e '.[test,check]'
  done_with tools pyproject.toml
fi

if [ ! -x node_modules/.bin/tsc ] || ! fresh node package-lock.json; then
  echo "setup_tests: TypeScript" >&2
  npm ci --no-audit --no-fund --loglevel=error
  done_with node package-lock.json
fi

[ "${1:-all}" = check ] && exit 0

# Their wheels do not load beside a CPU build of torch, so they stay out of .venv (tests/support/side_folder.py).
if [ ! -f .cache/oracle/loadable ]; then
  echo "setup_tests: torchvision and torchaudio for tests" >&2
fi
.venv/bin/python -m tests.support.side_folder
