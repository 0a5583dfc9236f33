# Sourced by the scripts that need programs for serving models: an environment for all scripts, in a fixed place.
# LMCACHE and TORCH name other versions for pip (0.5.6, 2.13.0), SERVING another folder.

serving=${SERVING:-${XDG_CACHE_HOME:-$HOME/.cache}/rmemcached-lmcache/venv}
lmcache=${LMCACHE:-0.5.6}
torch=${TORCH:-2.13.0}

# serving_install PIP-ARGUMENT...
serving_install() {
    "$serving/bin/python" -m pip --disable-pip-version-check --quiet install "$@" >&2 || die "pip could not install: $*"
}

# serving_has NAME VERSION: whether the environment has this version
serving_has() {
    "$serving/bin/python" -c 'import sys
from importlib.metadata import version
sys.exit(version(sys.argv[1]).split("+")[0] != sys.argv[2])' "$1" "$2" 2>/dev/null
}

# serving_environment: makes a missing environment
serving_environment() {
    [ -x "$serving/bin/python" ] || .venv/bin/python -m venv "$serving"
    serving_has torch "$torch" && serving_has lmcache "$lmcache" && return
    echo "installing LMCache $lmcache and torch $torch in $serving: some minutes, and 6 GB" >&2
    serving_install "torch==$torch"
    serving_install "torch==$torch" "lmcache==$lmcache"
}
