# shellcheck shell=bash disable=SC2034
# What the scripts of this folder share. Sourced by bash from the root of the repository, not run.

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# need PROGRAM PACKAGE: PROGRAM exists, or the message names the package that has it.
need() { command -v "$1" >/dev/null || die "$1: not found; remedy: install $2"; }

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

# Equal inputs give equal packages: every file has the time of the commit.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}"
export SOURCE_DATE_EPOCH

# target_of PROGRAM: the target that it was built for.
target_of() { "$1" --version | sed -n 's/.*, \(.*\))$/\1/p'; }

# same_times DIRECTORY: the time of every file is that of the commit.
same_times() { find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +; }

# manual PROGRAM DIRECTORY: man1 with the verbs, man7 with the chapters.
manual() {
  local topic
  need lowdown "the Debian package lowdown"
  "$1" help --man "$2/man1" || return 1
  mkdir -p "$2/man7"
  for topic in $("$1" help | sed -n '/^Topics/,$ s/^  \([a-z]*\) .*/\1/p'); do
    # The first line has man call the program that lays out tables.
    { printf "'\\\" t\n" && "$1" help "$topic" |
      lowdown -s -Tman -M title="streamgauge-$topic" -M section=7 -M date="$(date --utc --date="@$SOURCE_DATE_EPOCH" +%F)"; } \
      >"$2/man7/streamgauge-$topic.7" || return 1
  done
  gzip --best --no-name "$2"/man1/*.1 "$2"/man7/*.7
}

# completions PROGRAM DIRECTORY: where bash, zsh and fish look for them.
completions() {
  mkdir -p "$2/bash-completion/completions" "$2/zsh/vendor-completions" "$2/fish/vendor_completions.d"
  "$1" completions bash >"$2/bash-completion/completions/streamgauge" &&
    "$1" completions zsh >"$2/zsh/vendor-completions/_streamgauge" &&
    "$1" completions fish >"$2/fish/vendor_completions.d/streamgauge.fish"
}
