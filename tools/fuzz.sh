#!/usr/bin/env bash
# Gives the targets of tests/fuzz bytes that reach ever more of the code, for SECONDS in all. What is compiled runs under
# AddressSanitizer and UndefinedBehaviorSanitizer: a read or a write beyond what was given ends the run.
#
#   tools/fuzz.sh SECONDS [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$1
shift
[ $# -gt 0 ] || set -- speed frame journal csv_orders json_orders manifest parquet http
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

if ! .venv/bin/python -c 'import atheris' 2>/dev/null; then
  awk '/^[a-z]/ { is_it = /^atheris==/ } is_it' constraints-hashed.txt >"$folder/atheris.txt"
  .venv/bin/python -m pip install --quiet --no-deps --require-hashes --requirement "$folder/atheris.txt"
fi

# Not linked with the sanitizers' libraries: atheris brings theirs, with the eyes of its own.
build() {
  ${CC:-gcc} -c -O1 -g -Wall -Wextra -Wno-unused-parameter -Wno-missing-field-initializers -fno-omit-frame-pointer \
    -fsanitize=address,undefined -fno-sanitize-recover=all -fPIC \
    "-I$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')" \
    speedups/src/orderchain_speed.c -o "$folder/speed.o"
  ${CC:-gcc} -shared "$folder/speed.o" -o "$folder/orderchain_speed.abi3.so"
}

# The interpreter itself is not built for it: it keeps no pools of memory, and what it leaves at its end is no leak of ours.
sanitized() {
  LD_PRELOAD=$(.venv/bin/python -c 'import atheris; print(atheris.path())')/asan_with_fuzzer.so \
    ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc PYTHONPATH=$folder ORDERCHAIN_IMPL=native "$@"
}

for target; do
  run=()
  if [ "$target" = speed ]; then
    build
    sanitized .venv/bin/python -m pytest -q -p no:cacheprovider -p no:xdist tests/unit/chain_kernel/test_speed.py >"$folder/log" 2>&1 ||
      { tail -n 60 "$folder/log"; exit 1; }
    run=(sanitized)
  fi
  # Files in memory: some targets force each to the disk.
  TMPDIR=$([ -w /dev/shm ] && echo /dev/shm || echo "$folder") \
    "${run[@]}" .venv/bin/python -m tests.fuzz.run "$target" "-max_total_time=$((seconds / $#))" >"$folder/log" 2>&1 ||
    { grep -v INFO "$folder/log" | tail -n 60; exit 1; }
  echo "fuzz: $target: $(tail -n 1 "$folder/log"), nothing found"
done
