#!/usr/bin/env bash
# Installs servers, a browser and curl, which some tests need, where they are missing and can be had (apt-get, as root or
# by sudo):
#
#   redis-server   the consumer's filter in Redis
#   pgbouncer      fills through a pooler
#   prometheus     the rules of the alerts, which it reads, and which fire in it
#   postgresql     TLS and client certificates: the PostgreSQL of the local stack is built without OpenSSL
#   chromium       the console's page, as a browser shows it
#   nginx          the proxy that is shipped, before the message service
#   curl           the commands of the message service's page
#
# With `nightly`, and where npm is installed, also Quint, which runs the model of tests/judge/fence.qnt (45 MB in .venv).
#
# Wanted, not needed: what can not be installed is reported in one line, and its tests are skipped with a reason.
# None of them is started here; tests start their own.
set -euo pipefail

say() { printf 'setup: %s\n' "$*" >&2; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
can_install() { command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true >/dev/null 2>&1; }; }

# RUNLEVEL=1: a package's own service is not started.
apt() { as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq -o DPkg::Lock::Timeout=120 "$@"; }

install() { apt install -y --no-install-recommends "$@" >/dev/null 2>&1; }

has() { PATH=$PATH:/usr/sbin command -v "$1" >/dev/null; }

missing() {
  has "${REDIS_SERVER:-redis-server}" || echo redis-server
  has pgbouncer || echo pgbouncer
  has promtool || echo prometheus
  has initdb || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || echo postgresql
  has "${CHROMIUM:-chromium}" || echo chromium
  has nginx || echo nginx
  has curl || echo curl
}

install_quint() {
  # Its copy of what is to be installed is made last: without it the next run begins again.
  cmp -s tests/judge/package.json .venv/quint/installed.json && return
  say "fetching Quint ..."
  rm -rf .venv/quint && mkdir -p .venv/quint && cp tests/judge/package.json .venv/quint/
  if npm install --prefix .venv/quint --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null 2>&1; then
    cp tests/judge/package.json .venv/quint/installed.json
  else
    say "not installed: Quint; the tests that need it are skipped"
  fi
}

if [ "${1:-}" = nightly ] && has npm; then install_quint; fi
packages=$(missing | xargs)
[ -n "$packages" ] || exit 0
if can_install; then
  say "installing $packages for the tests ..."
  # shellcheck disable=SC2086 # one word per package
  if ! install $packages; then
    apt update >/dev/null 2>&1 || true
    # One at a time: a package that a distribution does not have keeps no other one away.
    for package in $packages; do install "$package" || true; done
  fi
fi
left=$(missing | xargs)
[ -z "$left" ] || say "not installed: $left; the tests that need them are skipped"
