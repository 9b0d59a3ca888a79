# Makes .venv on first use and installs what requirements.txt names; gui.sh and test.sh source this file.
# Leaves the folder of the project in $root and the interpreter in $python.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python="$root/.venv/bin/python"

supported() { # prints nothing; succeeds when $1 is a Python that we run on
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    local candidate
    for candidate in python3 python3.12 python3.11 python3.13 python3.10 python; do
        if supported "$candidate"; then echo "$candidate"; return; fi
    done
    echo "No Python 3.10, 3.11, 3.12 or 3.13 was found. Install one, for example: sudo apt install python3 python3-venv" >&2
    return 1
}

make_environment() {
    local base
    base=$(find_python) || return 1
    echo "Making $root/.venv with $("$base" --version)"
    "$base" -m venv "$root/.venv" && return
    echo "python -m venv failed. On Debian and Ubuntu: sudo apt install python3-venv" >&2
    return 1
}

install_requirements() {
    local wanted stamp="$root/.venv/installed"
    wanted=$(cat "$root/requirements.txt" "$root/pyproject.toml" | cksum) || return 1
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
    echo "Installing the requirements; the first time this downloads several gigabytes"
    "$python" -m pip install --disable-pip-version-check -r "$root/requirements.txt" -e "$root" || return 1
    echo "$wanted" >"$stamp" # only now, so that an interrupted installation is taken up again
}

"$python" -m pip --version >/dev/null 2>&1 || make_environment || exit 1
supported "$python" || {
    echo "$root/.venv was made with $("$python" --version), but Python 3.10 to 3.13 is needed. Delete $root/.venv and start again" >&2
    exit 1
}
install_requirements || {
    echo "The requirements could not be installed; the lines above say why. Start again to go on where it stopped" >&2
    exit 1
}
