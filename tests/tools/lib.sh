# shellcheck shell=bash disable=SC2034
# What the scripts of this folder and tests/run share. Sourced by bash, not run.

# Where the tools are installed. Everything is inside: remove the directory and nothing is left.
PARTS=${STREAMGAUGE_PARTS:-$HOME/.cache/streamgauge-parts}

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# skip WHAT: a check that this machine does not permit: passes with a message, and fails if FORBID_SKIPS is set.
skip() {
  say "SKIPPED $*"
  [ -z "${FORBID_SKIPS:-}" ]
}

# need_debian PACKAGE...: installs the Debian packages that are missing.
need_debian() {
  local package as_root=() missing=()
  for package; do
    dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "${missing[*]}: not installed, and this is no Debian; remedy: install them by this system's own means"
  if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null || die "${missing[*]}: not installed, and sudo asks for a password; remedy: sudo apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${missing[*]}"
  local install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}")
  # The lists may be older than the archive: the second try has fresh ones.
  "${install[@]}" >&2 || { "${as_root[@]}" apt-get update -qq >&2 && "${install[@]}" >&2; } ||
    die "${missing[*]}: apt-get could not install them; remedy: see its message above"
}
