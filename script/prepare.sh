# Sourced by script/demo and script/test: makes .venv with everything the project needs.
# PYTHON names the interpreter (default: python3).

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}

die() {
    echo "$*" >&2
    exit 1
}

# missing_packages EXTRAS: the Debian packages that have what is not here
missing_packages() {
    local extras=$1 include
    command -v cc >/dev/null || echo gcc libc6-dev
    if command -v "$python" >/dev/null; then
        include=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')
        [ -e "$include/Python.h" ] || echo python3-dev
        "$python" -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
    else
        echo python3 python3-dev python3-venv
    fi
    [ -e /usr/include/infiniband/verbs.h ] || echo libibverbs-dev
    [ -e /usr/include/isa-l.h ] || echo libisal-dev
    command -v memcached >/dev/null || [ -x /usr/bin/memcached ] || echo memcached
    case ,$extras, in
    *,test,*)
        command -v tshark >/dev/null || echo tshark
        perl -MTest::More -e 1 2>/dev/null || echo perl
        [ -e /usr/lib/python3/dist-packages/pyverbs ] || echo python3-pyverbs
        ;;
    esac
}

# install_packages EXTRAS
install_packages() {
    local missing
    missing=$(missing_packages "$1" | tr '\n' ' ')
    [ -n "${missing// /}" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing: $missing"
        # A package's daemon is not to be started by its installation.
        DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq update &&
            DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq install -y --no-install-recommends $missing >/dev/null ||
            die "apt-get could not install: $missing"
    else
        die "missing: these packages (Debian's names; install them as root): $missing"
    fi
}

# prepare EXTRAS [pip options]: builds and installs the project into .venv
prepare() {
    local extras=$1
    shift
    install_packages "$extras"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "Python 3.11 or later is needed; $("$python" -V) was found (PYTHON=... names another)"
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    case ,$extras, in
    *,test,*) export RMEMCACHED_TESTING=1 ;;
    esac
    .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@" ".[$extras]" ||
        die "the build failed"
}

# build_beside KIND VARIABLE=VALUE...: builds the project with these variables into build/KIND/site, after `prepare`. What is
# installed in .venv stays as it is; Python imports this build with PYTHONPATH=$PWD/build/KIND/site.
build_beside() {
    local kind=$1
    shift
    env "$@" .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade \
        --target "build/$kind/site" . || die "the $kind build failed"
}

# check_imported KIND COMMAND...: ends the script unless this command, a Python with its environment, imports that build.
check_imported() {
    local kind=$1
    shift
    "$@" -P -c 'import sys; from rmemcached.store import store
sys.exit(0 if store.__file__.startswith(sys.argv[1]) else f"{store.__file__} would be tested")' "$PWD/build/$kind/" ||
        die "the $kind build is not the one that Python imports"
}
