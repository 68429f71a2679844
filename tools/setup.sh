#!/usr/bin/env bash
# Makes what the project needs on this machine: `tools/setup.sh first` for `make quickstart`, `light` for `make demo SPARK=no`,
# `demo` for `make demo`, `site` for `make site`, `all` for everything else. `first` and `site` need no Java, Spark or jars.
#
#   Debian's packages   python3-venv and a headless Java of 17 or newer, where they are missing (apt-get, as root or by
#                       sudo; otherwise one line says what to install, and the exit code is 2)
#   .venv               the project itself, editable, with the extras of the level, in the versions of constraints.txt
#   jars                Apache Kafka, in a cache that all checkouts share
#
# What does not need each other is fetched at the same time. The second time it does nothing and needs no network.
# PYTHON=/path/to/python chooses the interpreter. The last line of a set-up that fails names the cause, where it is known.
set -euo pipefail
cd "$(dirname "$0")/.."
cd "$(pwd -P)"

level=${1:-all}
java_major_min=17

say() { printf 'setup: %s\n' "$*" >&2; }
stop() { say "$*"; exit 2; }

case $level in
  first) extras=cli,stack size="45 MB" disk_mb=700 ;;
  light) extras=cli,web,stack size="50 MB" disk_mb=1000 ;;
  demo) extras=cli,web,stack,spark size="110 MB" disk_mb=3000 ;;
  site) extras=docs size="35 MB" disk_mb=500 ;;
  all) extras=dev size="280 MB" disk_mb=5000 ;;
  *) stop "the level was '$level', expected first, light, demo, site or all" ;;
esac

# What this set-up was made from; the folder is part of it, since a virtual environment cannot be moved.
fingerprint() { { pwd; cat pyproject.toml constraints.txt constraints-hashed.txt tools/setup.sh speedups/*.* speedups/src/*.[ch]; } | cksum; }

stamp() { echo ".venv/.setup-$1"; }

is_done() { # LEVEL: it, or one that holds all of it
  if [ "$1" = site ] && is_done all; then return; fi
  if [ "$1" = light ] && is_done demo; then return; fi
  if [ "$1" = first ] && is_done light; then return; fi
  [ -x .venv/bin/python ] && [ -r "$(stamp "$1")" ] && [ "$(cat "$(stamp "$1")")" = "$(fingerprint)" ]
}

# --- what the system must have ---------------------------------------------------------------------------------------

# Packages come here; what they are made of goes through the temporary folder, which may be another disk.
require_disk() {
  local folder need=$disk_mb free_mb
  for folder in "$PWD" "$temporary"; do
    free_mb=$(df -Pk "$folder" 2>/dev/null | awk 'NR == 2 { print int($4 / 1000) }') || free_mb=
    [ -z "$free_mb" ] || [ "$free_mb" -ge "$need" ] || stop "$folder has $free_mb MB free, the set-up needs $need MB there"
    need=$((disk_mb / 2))
  done
}

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3.14 python3}; do
    if fits "$candidate"; then command -v "$candidate"; return; fi
  done
  stop "Python 3.11 to 3.14 is needed${PYTHON:+, PYTHON=$PYTHON is none}"
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

missing_venv() {
  "$python" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
    "$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'
}

needs_java() { [ "$level" != site ] && [ "$level" != first ]; }

missing_java() { ! needs_java || has_java || java_package; }

missing_packages() { { missing_venv; missing_java; } | xargs; }

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

can_install() {
  command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true >/dev/null 2>&1; }
}

# RUNLEVEL=1: a package's own service is not started.
apt() { as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq -o DPkg::Lock::Timeout=120 "$@"; }

install_packages() { apt install -y --no-install-recommends "$@"; }

# The virtual environment waits for python3-venv, which is small; Java is installed beside all that comes then.
begin_packages() {
  local missing
  missing=$(missing_packages)
  [ -n "$missing" ] || return 0
  can_install || stop "please install what is missing, as root: apt-get install --no-install-recommends $missing"
  begin "reading the lists of packages" apt update
  finish
  missing=$(missing_venv)
  if [ -n "$missing" ]; then
    begin "installing $missing" install_packages "$missing"
    finish
    [ -z "$(missing_venv)" ] || stop "still missing after the installation: $missing"
  fi
  missing=$(missing_java) # what is on offer is known only now
  [ -z "$missing" ] || begin "installing $missing (about 50 MB)" install_packages "$missing"
}

# --- several things at once ------------------------------------------------------------------------------------------

declare -A labels=() outputs=() # by process id
temporary=$(mktemp -d)
columns=$(stty size <&2 2>/dev/null | cut -d ' ' -f 2) || columns=
trap 'for child in "${!labels[@]}"; do kill -- "-$child" 2>/dev/null || true; done; rm -rf "$temporary"' EXIT
trap 'clear_line; say "interrupted; the next call goes on with what is here"; exit 130' INT

# begin LABEL COMMAND...: starts it beside what was begun before, in a process group of its own.
begin() {
  local label=$1 output
  shift
  output=$(mktemp "$temporary/XXXXXX.log")
  say "$label ..."
  set -m
  "$@" >"$output" 2>&1 </dev/null &
  set +m
  labels[$!]=$label outputs[$!]=$output
}

# finish: waits for all that was begun, shows how long it takes, and prints the last lines of what fails.
finish() {
  local begin=$SECONDS every=10 next child
  [ -t 2 ] && every=1
  next=$((begin + every))
  while [ ${#labels[@]} -gt 0 ]; do
    sleep 0.2
    for child in "${!labels[@]}"; do
      kill -0 "$child" 2>/dev/null && continue
      wait "$child" || failed "$child"
      unset "labels[$child]"
    done
    [ "$SECONDS" -ge "$next" ] || continue
    report "$((SECONDS - begin)) s:$(for child in "${!labels[@]}"; do doing "$child"; done)"
    next=$((SECONDS + every))
  done
  clear_line
}

clear_line() { [ ! -t 2 ] || printf '\r\033[K' >&2; }

failed() {
  clear_line
  tail -n 15 "${outputs[$1]}" >&2
  say "${labels[$1]}: failed$(cause_in "${outputs[$1]}")"
  unset "labels[$1]"
  exit 3
}

# What people can do something about; pip says it somewhere in the middle.
cause_in() { # FILE
  if grep -qE 'CERTIFICATE_VERIFY_FAILED|PKIX path building failed' "$1"; then
    echo ": it does not trust the certificate of $(host_in "$1"). A proxy's own? PIP_CERT and SSL_CERT_FILE name the file of its CA"
  elif grep -qE 'No space left on device|Disk quota exceeded' "$1"; then
    echo ": the disk is full"
  elif grep -qE 'NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError|Connection refused' "$1"; then
    echo ": no connection to $(host_in "$1"). HTTPS_PROXY and PIP_INDEX_URL name another way"
  fi
}

host_in() { sed -n "s/.*host='\([^']*\)'.*/\1/p" "$1" | head -n 1 | grep . || echo "what it asked"; }

report() { if [ -t 2 ]; then printf '\r\033[Ksetup: %s' "$(cut -c "1-$((${columns:-80} - 8))" <<<"$1")" >&2; else say "$1"; fi; }

# What one is at, such as "Downloading pyspark-4.0.0.tar.gz (434 MB)", or "17 jars, 23 MB".
doing() {
  local last
  last=$(sed -n 's/^ *\(\(Downloading\|Building\|Installing\|Fetching\) .*\)/\1/p' "${outputs[$1]}" | tail -n 1)
  printf ' [%s]' "$(cut -c 1-48 <<<"${last:-${labels[$1]}}")"
}

# --- the virtual environment -----------------------------------------------------------------------------------------

venv_fits() { [ -x .venv/bin/pip ] && fits .venv/bin/python && grep -q "$PWD/.venv/" .venv/bin/pip; }

make_venv() {
  if [ -z "${PYTHON:-}" ] && venv_fits; then return; fi
  "$python" -m venv --clear .venv
}

pip_install() {
  TMPDIR=$temporary .venv/bin/python -m pip install --progress-bar off --disable-pip-version-check --no-input \
    --constraint constraints.txt "$@"
}

# What the extras $1 name, one requirement a line, but for Spark.
requirements() {
  .venv/bin/python -c '
import re, sys, tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
def named(names):
    for requirement in (one for name in names.split(",") for one in extras[name]):
        ours = re.fullmatch(r"orderchain\[(.*)\]", requirement)
        yield from named(ours[1]) if ours else [requirement]
print(*sorted({one for one in named(sys.argv[1]) if not one.startswith("pyspark")}), sep="\n")
' "$1"
}

# For developers and CI: the files that `make hashes` has seen, by their hashes, and no others.
install_by_hashes() {
  awk '/^[a-z]/ { is_apart = /^(pyspark|py4j|atheris)==/ } !is_apart' constraints-hashed.txt >"$temporary/hashed.txt"
  pip_install --require-hashes --no-deps --requirement "$temporary/hashed.txt"
  pip_install --no-deps --no-build-isolation --editable .
}

# Spark comes as sources, which are jars mostly. Its wheel is made without compressing them again: that takes 12 s of CPU
# time and saves little. pip keeps the wheel for the next checkout.
begin_python_packages() {
  if [ "$level" = all ]; then
    begin "fetching Python packages ($size)" install_by_hashes
  else
    requirements "$extras" >"$temporary/requirements.txt"
    begin "fetching Python packages ($size)" pip_install --editable . --requirement "$temporary/requirements.txt"
  fi
  [ "$level" = light ] || ! needs_java || is_done demo || begin "fetching Spark (434 MB)" pip_install pyspark \
    --use-pep517 --config-settings=--build-option=--compression=stored
}

# The hottest functions, compiled: the suite runs with them where they are, and does without them elsewhere.
build_speed() {
  if [ "$level" != all ]; then return; fi
  if ! command -v "${CC:-cc}" >/dev/null || ! [ -r "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h" ]; then
    say "no C compiler or no headers of Python: all runs without orderchain-speed, in Python"
  elif ! pip_install --no-deps --no-build-isolation --no-index ./speedups >"$temporary/speed.log" 2>&1; then
    say "orderchain-speed was not built: all runs in Python. $(grep -m 1 'error:' "$temporary/speed.log")"
  fi
}

# ---------------------------------------------------------------------------------------------------------------------

if is_done "$level"; then exit 0; fi
if command -v flock >/dev/null; then # two at once: the second waits, and then finds it done
  exec 9<pyproject.toml
  flock 9
  if is_done "$level"; then exit 0; fi
fi
require_disk
python=$(find_python)
begin_packages
make_venv
begin_python_packages
finish
build_speed
if needs_java && ! is_done demo; then
  [ -z "$(missing_java)" ] || stop "still missing after the installation: $(missing_java)"
  begin "fetching Apache Kafka (43 MB)" .venv/bin/python -m local_stack.jars
  finish
  [ "$level" = light ] || fingerprint >"$(stamp demo)"
fi
fingerprint >"$(stamp "$level")"
say "done, after $SECONDS s"
