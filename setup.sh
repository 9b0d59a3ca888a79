# Creates .venv on first use and installs requirements.txt, and requirements-dev.txt if that is its argument.
# gui.sh and test.sh source this file. Sets $root to the project folder and $python to the interpreter.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python="$root/.venv/bin/python"

supported() { # prints nothing; succeeds if $1 is a supported Python
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

# Prints the path of $1, if environments and compiled code can be made with it.
path_of() {
    "$1" -c '
import ensurepip, os, sys, sysconfig, venv
os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))  # Triton and inductor need it
print(os.path.realpath(sys.executable))' 2>/dev/null
}

# Prints the microseconds of processor time that work with objects, dicts, strings and JSON takes in $1. A loop over
# integers would not do: it takes equally long in a Python that was built without optimizations.
measure() {
    "$1" -I -S -c '
import json, time
class Item:
    def __init__(self, name, size):
        self.name, self.size = name, size
    def larger(self, by):
        return Item(self.name, self.size + by)
def work():
    began = time.process_time()
    items = [Item(f"item {number:04d}", number) for number in range(1000)]
    sizes = {item.name.replace(" ", "_"): item.larger(1).size for item in items}
    json.loads(json.dumps(sorted(sizes.items()), indent=1))
    return time.process_time() - began
print(round(min(work() for _ in range(5)) * 1e6))' 2>/dev/null
}

# The first Python that is supported, unless another takes less than five sixths of its time: a Python that was built
# without optimizations, as pyenv builds it unless told otherwise, takes 1.2 to 1.5 times as long for all that is Python.
find_python() {
    local candidate path time round index first="" chosen="" least="" seen=" " candidates=() paths=() times=()
    for candidate in python3 python3.12 python3.11 python3.13 python3.10 python /usr/bin/python3; do
        supported "$candidate" || continue
        first=${first:-$candidate}
        path=$(path_of "$candidate") || continue
        [[ "$seen" == *" $path "* ]] && continue
        seen+="$path "
        candidates+=("$candidate")
        paths+=("$path")
    done
    for round in 1 2 3 4; do # in turn, so that a busy processor slows all of them
        for index in "${!paths[@]}"; do
            time=$(measure "${paths[index]}") || continue
            [ "$time" -ge "${times[index]:-$((time + 1))}" ] || times[index]=$time
        done
    done
    for index in "${!times[@]}"; do
        time=${times[index]}
        if [ -z "$least" ] || [ $((6 * time)) -lt $((5 * least)) ]; then chosen=${candidates[index]} least=$time; fi
    done
    if [ -n "$first" ]; then echo "${chosen:-$first}"; return; fi
    echo "No Python 3.10, 3.11, 3.12 or 3.13 was found. Install one, for example with: sudo apt install python3 python3-venv" >&2
    return 1
}

make_environment() {
    local base
    base=$(find_python) || return 1
    echo "Creating $root/.venv with $("$base" --version), $(command -v "$base")"
    "$base" -m venv "$root/.venv" && return
    echo "python -m venv failed. On Debian and Ubuntu, run: sudo apt install python3-venv" >&2
    return 1
}

# Installs $1, with requirements.txt also the project itself, unless that has been done. What is installed beyond it stays.
install_requirements() {
    local wanted stamp="$root/.venv/installed-$1" project=()
    [ "$1" = requirements.txt ] && project=(-e "$root")
    wanted=$(cat "$root/$1" ${project:+"$root/requirements-no-deps.txt" "$root/pyproject.toml"} | cksum) || return 1
    [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
    echo "Installing $1. The first time, this downloads several gigabytes."
    PYTHONPATH=$root "$python" -m sd_scripts.tools.install_torch || return 1 # the CUDA build that the driver runs
    "$python" -m pip install --disable-pip-version-check -r "$root/$1" "${project[@]}" || return 1
    [ -z "$project" ] || "$python" -m pip install --disable-pip-version-check --no-deps -r "$root/requirements-no-deps.txt" || return 1
    echo "$wanted" >"$stamp" # last, so that an interrupted installation is resumed
}

"$python" -m pip --version >/dev/null 2>&1 || make_environment || exit 1
supported "$python" || {
    echo "$root/.venv uses $("$python" --version), but Python 3.10 to 3.13 is required. Delete $root/.venv and start again." >&2
    exit 1
}
{ install_requirements requirements.txt && install_requirements "${1:-requirements.txt}"; } || {
    echo "The requirements could not be installed; see the output above. Start again to continue the installation." >&2
    exit 1
}
