#!/bin/sh
# Installs a release of Throng, after checking its checksum.
#
#   sh install.sh                          into /usr/local for root, else into ~/.local
#   sh install.sh --version 0.1.0 --prefix /opt/throng
#   sh install.sh --laboratory             the load generator and the benchmarks, beside the server
#   sh install.sh --from URL               from a copy of the release's files: a URL, or a directory
#
# Nothing is installed if the checksum is wrong. The checksum protects against a broken download; that the
# release comes from the project, `gh attestation verify` shows.
set -eu

releases=https://github.com/throng-push/throng/releases
version=latest from='' prefix='' package=throng programs=throng

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

usage() {
    cat <<'END'
Installs a release of Throng, after checking its checksum.

Usage: sh install.sh [--version VERSION] [--prefix DIRECTORY] [--laboratory] [--from URL]

  --version VERSION   this release [default: the latest one]
  --prefix DIRECTORY  where to [default: /usr/local for root, else ~/.local]
  --laboratory        the load generator and the benchmarks instead of the server
  --from URL          from a copy of the release's files: a URL, or a directory
  --help              print this
END
}

while [ $# -gt 0 ]; do
    case "$1" in
    --help | -h)
        usage
        exit
        ;;
    --laboratory)
        package=throng-lab programs='throng-flood throng-bench'
        shift
        ;;
    --version | --prefix | --from)
        [ $# -ge 2 ] || fail "$1 needs a value"
        case "$1" in
        --version) version="${2#v}" ;;
        --prefix) prefix="$2" ;;
        --from) from="${2%/}" ;;
        esac
        shift 2
        ;;
    *) fail "'$1' is no option: use --version VERSION, --prefix DIRECTORY, --laboratory, --from URL" ;;
    esac
done

[ "$(uname -s)" = Linux ] || fail "there are binaries for Linux only; elsewhere, build from source"
case "$(uname -m)" in
x86_64 | amd64) architecture=x86_64 ;;
aarch64 | arm64) architecture=aarch64 ;;
*) fail "there is no binary for $(uname -m); build from source" ;;
esac
if [ -z "$prefix" ]; then
    if [ "$(id -u)" -eq 0 ]; then prefix=/usr/local; else prefix="${HOME:?}/.local"; fi
fi
if [ -z "$from" ]; then
    if [ "$version" = latest ]; then from="$releases/latest/download"; else from="$releases/download/v$version"; fi
fi

directory="$(mktemp -d)"
trap 'rm -rf "$directory"' EXIT
trap 'exit 1' HUP INT TERM

get() {
    case "$from" in
    http://* | https://*)
        if command -v curl >/dev/null 2>&1; then
            curl -fsSL --retry 2 -o "$directory/$1" "$from/$1"
        elif command -v wget >/dev/null 2>&1; then
            wget -q -O "$directory/$1" "$from/$1"
        else
            fail "curl or wget is needed"
        fi
        ;;
    *) cp "$from/$1" "$directory/$1" ;;
    esac || fail "cannot get $from/$1"
}

archive="$package-$architecture-linux.tar.gz"
get SHA256SUMS
get "$archive"
# The line of this archive only: the file has those of all files of the release.
expected="$(awk -v name="$archive" '$2 == name || $2 == "*" name { print $1 }' "$directory/SHA256SUMS")"
[ -n "$expected" ] || fail "SHA256SUMS has no line for $archive; nothing was installed"
command -v sha256sum >/dev/null 2>&1 || fail "sha256sum is needed, to check the archive"
found="$(sha256sum "$directory/$archive" | cut -d ' ' -f 1)"
[ "$found" = "$expected" ] ||
    fail "$archive has the checksum $found, and SHA256SUMS says $expected; nothing was installed"

mkdir "$directory/files"
tar -xzf "$directory/$archive" -C "$directory/files" --strip-components=1
mkdir -p "$prefix/bin" "$prefix/share/man/man1" "$prefix/share/bash-completion/completions" \
    "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d" "$prefix/share/$package"
cd "$directory/files"
cp man/*.1 "$prefix/share/man/man1/"
cp LICENSE licenses.txt "$prefix/share/$package/"
if [ "$package" = throng ]; then
    cp throng.toml throng.service throng.socket "$prefix/share/throng/"
    rm -rf "$prefix/share/throng/html"
    cp -R html "$prefix/share/throng/html"
fi
for program in $programs; do
    cp "completions/$program.bash" "$prefix/share/bash-completion/completions/$program"
    cp "completions/$program.zsh" "$prefix/share/zsh/site-functions/_$program"
    cp "completions/$program.fish" "$prefix/share/fish/vendor_completions.d/$program.fish"
    # A program that runs keeps its file: the new one takes the name in one step.
    cp "$program" "$prefix/bin/.$program.new"
    chmod 755 "$prefix/bin/.$program.new"
    mv -f "$prefix/bin/.$program.new" "$prefix/bin/$program"
    "$prefix/bin/$program" --version
done
case ":$PATH:" in
*":$prefix/bin:"*) ;;
*) echo "Add $prefix/bin to PATH." ;;
esac
