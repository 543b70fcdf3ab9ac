#!/usr/bin/env bash
# Runs a command on a machine without a GPU as if it had one that speaks Vulkan:
#
#     tests/plugins/software_gpu.sh FOLDER COMMAND [ARGUMENTS]
#
# The driver is SwiftShader, which computes on the processor. It comes with Chromium: Debian's
# package chromium-common is fetched into FOLDER on first use and unpacked there, not installed.
set -euo pipefail
folder="$(mkdir -p "$1" && cd "$1" && pwd)"
shift
drivers="$folder/usr/lib/chromium"
if [ ! -e "$drivers/vk_swiftshader_icd.json" ]; then
  command -v apt-get >/dev/null || { echo "software_gpu: needs apt-get, of Debian" >&2; exit 1; }
  cd "$folder"
  apt-get download -q chromium-common >&2 ||
    { apt-get update -q >&2 && apt-get download -q chromium-common >&2; }
  dpkg-deb -x chromium-common_*.deb unpacked
  rm chromium-common_*.deb
  mkdir -p usr/lib/chromium run
  for name in libvulkan.so.1 libvk_swiftshader.so vk_swiftshader_icd.json; do
    mv "unpacked/usr/lib/chromium/$name" "$drivers/"
  done
  rm -r unpacked
  cd - >/dev/null
fi
export VK_ICD_FILENAMES="$drivers/vk_swiftshader_icd.json"
export XDG_RUNTIME_DIR="$folder/run"
export LD_LIBRARY_PATH="$drivers${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$@"
