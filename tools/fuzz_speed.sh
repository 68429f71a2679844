#!/usr/bin/env bash
# Compares the compiled functions with Python's for SECONDS, built with AddressSanitizer and UndefinedBehaviorSanitizer: a read or
# a write beyond what was given ends the run, and so does any byte that differs.
#
#   tools/fuzz_speed.sh SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-3600}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
include=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
${CC:-gcc} -O1 -g -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -fno-omit-frame-pointer \
  -fsanitize=address,undefined -fno-sanitize-recover=all -shared -fPIC "-I$include" speedups/src/orderchain_speed.c \
  -o "$folder/orderchain_speed.abi3.so"

# The interpreter itself is not built for it: its library comes first, it keeps no pools of memory, and what it leaves at its
# end is no leak of ours.
export LD_PRELOAD ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH=$folder ORDERCHAIN_IMPL=native FUZZ_SPEED=$folder
LD_PRELOAD=$(${CC:-gcc} -print-file-name=libasan.so)
rounds=0
end=$((SECONDS + seconds))
while [ "$SECONDS" -lt "$end" ]; do
  .venv/bin/python -m pytest -q -p no:cacheprovider -p no:xdist -x --hypothesis-seed="$RANDOM$RANDOM" \
    tests/unit/chain_kernel/test_speed.py >"$folder/log" 2>&1 || { tail -n 60 "$folder/log"; exit 1; }
  rounds=$((rounds + 1))
done
echo "fuzz: $rounds rounds in $seconds s, each with other values: nothing differs, nothing was touched that was not given"
