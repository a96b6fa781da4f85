# Shared by the scripts; sourced, not run. Needs bash with set -euo pipefail.
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
BUILD="$ROOT/build"

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }
fail() {
  say "error: $*"
  exit 1
}
usage_error() {
  say "error: $*; see $(basename "$0") --help"
  exit 2
}

# Prints the comment block at the top of the running script.
print_help() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; }

# Seconds since the epoch, with milliseconds.
now() { date +%s.%3N; }
seconds_since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }

# Configures a build folder once: configure FOLDER [MESON OPTION...]; later calls keep its options.
configure() {
  local folder=$1
  shift
  [[ -f "$folder/build.ninja" ]] || meson setup "$folder" "$ROOT" "$@"
}

# A TCP port of the loopback interface that is free now.
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
