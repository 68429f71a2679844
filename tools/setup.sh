#!/usr/bin/env bash
# Makes everything that the project needs on this machine; run by `make setup`.
#
#   Debian's packages   python3-venv and a headless Java of 17 or newer, where they are missing (apt-get, as root or by
#                       sudo; otherwise one line says what to install, and the exit code is 2)
#   .venv               the project itself, editable, with every extra, in the versions of constraints.txt
#   jars                Apache Kafka and Spark's connectors, in a cache that all checkouts share
#
# The second time it does nothing and needs no network. PYTHON=/path/to/python chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
cd "$(pwd -P)"

stamp=.venv/.setup
log=.venv/setup.log
java_major_min=17

say() { printf 'setup: %s\n' "$*" >&2; }
stop() { say "$*"; exit 2; }

# What this set-up was made from; the folder is part of it, since a virtual environment cannot be moved.
fingerprint() { { pwd; cat pyproject.toml constraints.txt tools/setup.sh; } | cksum; }

is_done() { [ -x .venv/bin/python ] && [ -r "$stamp" ] && [ "$(cat "$stamp")" = "$(fingerprint)" ]; }

# --- what the system must have ---------------------------------------------------------------------------------------

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
    if fits "$candidate"; then command -v "$candidate"; return; fi
  done
  stop "Python 3.11, 3.12 or 3.13 is needed${PYTHON:+, PYTHON=$PYTHON is none}"
}

java_fits() {
  local major
  major=$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || return 1
  [ "${major:-0}" -ge "$java_major_min" ]
}

has_java() { java_fits "${JAVA_HOME:-/nonexistent}/bin/java" || java_fits java; }

# Distributions differ in which versions they carry; the default one may be too old.
java_package() {
  local package
  for package in openjdk-17-jre-headless openjdk-21-jre-headless; do
    if apt-cache show "$package" >/dev/null 2>&1; then echo "$package"; return; fi
  done
  echo default-jre-headless
}

missing_packages() {
  "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
    "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
  has_java || java_package
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

can_install() {
  command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true >/dev/null 2>&1; }
}

# RUNLEVEL=1: a package's own service is not started.
apt() { as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq -o DPkg::Lock::Timeout=120 "$@"; }

install_packages() {
  local missing
  missing=$(missing_packages | xargs)
  [ -n "$missing" ] || return 0
  can_install || stop "please install what is missing, as root: apt-get install --no-install-recommends $missing"
  apt_log=$(mktemp)
  watched "reading the lists of packages" "$apt_log" apt update
  missing=$(missing_packages | xargs) # what is on offer is known only now
  # shellcheck disable=SC2086 # one word a package
  watched "installing $missing" "$apt_log" apt install -y --no-install-recommends $missing
  rm -f "$apt_log"
  missing=$(missing_packages | xargs)
  [ -z "$missing" ] || stop "still missing after the installation: $missing"
}

# --- progress --------------------------------------------------------------------------------------------------------

# watched LABEL LOG COMMAND...: runs it with its output in LOG, tells how long it takes, and shows LOG's end if it fails.
watched() {
  local label=$1 output=$2 begin=$SECONDS every=10 status=0 next
  shift 2
  [ -t 2 ] && every=1
  next=$((begin + every))
  say "$label ..."
  "$@" >>"$output" 2>&1 </dev/null &
  child=$!
  while kill -0 "$child" 2>/dev/null; do
    sleep 0.2
    [ "$SECONDS" -ge "$next" ] || continue
    report "$label ... $((SECONDS - begin)) s$(doing "$output")"
    next=$((SECONDS + every))
  done
  wait "$child" || status=$?
  child=
  [ -t 2 ] && printf '\r\033[K' >&2
  [ "$status" = 0 ] && return
  tail -n 15 "$output" >&2
  say "$label failed (exit $status)"
  exit 3
}

report() { if [ -t 2 ]; then printf '\r\033[Ksetup: %s' "$1" >&2; else say "$1"; fi; }

# What pip is at, such as "Downloading pyspark-4.0.0.tar.gz (434 MB)".
doing() { sed -n 's/^ *\(\(Downloading\|Building\|Installing\) .*\)/, \1/p' "$1" | tail -n 1 | cut -c 1-60; }

# --- the virtual environment -----------------------------------------------------------------------------------------

venv_fits() { [ -x .venv/bin/pip ] && fits .venv/bin/python && grep -q "$PWD/.venv/" .venv/bin/pip; }

make_venv() {
  if [ -z "${PYTHON:-}" ] && venv_fits; then return; fi
  "$python" -m venv --clear .venv
}

install_project() {
  mkdir -p .venv/tmp
  : >"$log"
  TMPDIR=$PWD/.venv/tmp watched "fetching the Python packages (about 450 MB)" "$log" \
    .venv/bin/python -m pip install --progress-bar off --disable-pip-version-check --no-input \
    --constraint constraints.txt --editable '.[dev]'
  rm -rf .venv/tmp
}

fetch_jars() {
  .venv/bin/python -m local_stack.jars
  .venv/bin/python -m chain_verifier.spark.connectors
}

if is_done; then exit 0; fi
if command -v flock >/dev/null; then # two at once: the second waits, and then finds it done
  exec 9<pyproject.toml
  flock 9
  if is_done; then exit 0; fi
fi
child=
trap '[ -z "$child" ] || kill "$child" 2>/dev/null || true' EXIT
python=$(find_python)
install_packages
make_venv
install_project
fetch_jars
fingerprint >"$stamp"
say "done"
