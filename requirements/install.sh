#!/bin/sh
# Installs one layer and packages of this project into a virtual environment, which is made if there is none:
# sh requirements/install.sh VENV LOCK FOLDER...
#
# uv takes seconds where pip takes minutes. pip installs uv itself, and everything where uv cannot: where only pip has
# been told of a mirror, and on machines that uv is not made for. INSTALLER=pip does without uv.
set -eu
venv=$1 lock=$2
shift 2
python=$venv/bin/python
compile=
if [ ! -x "$python" ]; then
    "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "Hourglass needs Python 3.11 or newer; try make PYTHON=python3.12" >&2
        exit 1
    }
    "${PYTHON:-python3}" -m venv "$venv"
fi
if [ "$(basename "$lock")" = runtime.lock ]; then
    compile=--compile-bytecode # six processes of the demonstration would compile the same modules at the same time
fi

with_pip() {
    "$python" -m pip install --quiet "$@"
}
with_uv() {
    "$venv/bin/uv" pip install --quiet --python "$python" $compile "$@"
}
get_uv() {
    sed -n '/^uv==/,/[^\\]$/p' "$lock" >"$venv/uv.lock"
    with_pip --require-hashes -r "$venv/uv.lock"
}
install() {
    if [ "$installer" = uv ]; then
        with_uv "$@" && return
        echo "uv cannot install here; pip does" >&2
        installer=pip
    fi
    with_pip "$@"
}

installer=${INSTALLER:-uv}
if [ "$installer" = uv ] && ! get_uv; then
    installer=pip
fi
install --require-hashes -r "$lock"
if [ $# -gt 0 ]; then
    for folder; do
        set -- "$@" -e "$folder"
        shift
    done
    install --no-deps --no-build-isolation "$@"
fi
