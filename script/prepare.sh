# Sourced by the scripts that need .venv: makes .venv, with everything for the project.
# PYTHON names the interpreter (default: python3). Without PYTHON, a .venv of this folder stays in use; python3 must still
# be Python 3.11 or later.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}

die() {
    echo "$*" >&2
    exit 1
}

# missing_packages EXTRAS: prints the names of the Debian packages still to be installed
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
    [ -e /usr/include/xxhash.h ] || echo libxxhash-dev
    [ -e /usr/include/openssl/ssl.h ] || echo libssl-dev
    command -v memcached >/dev/null || [ -x /usr/bin/memcached ] || echo memcached
    case ,$extras, in
    *,test,*)
        command -v git >/dev/null || echo git
        command -v mandoc >/dev/null || echo mandoc
        command -v zsh >/dev/null || echo zsh
        command -v openssl >/dev/null || echo openssl
        command -v tshark >/dev/null || echo tshark
        command -v systemd-analyze >/dev/null || echo systemd
        command -v saslpasswd2 >/dev/null || [ -x /usr/sbin/saslpasswd2 ] || echo sasl2-bin libsasl2-modules
        command -v nutcracker >/dev/null || [ -x /usr/sbin/nutcracker ] || echo nutcracker
        [ -x /bin/kill ] || echo procps
        command -v ip >/dev/null || echo iproute2
        command -v nft >/dev/null || [ -x /usr/sbin/nft ] || echo nftables
        command -v strace >/dev/null || echo strace
        perl -MTest::More -e 1 2>/dev/null || echo perl
        perl -MIO::Socket::SSL -e 1 2>/dev/null || echo libio-socket-ssl-perl
        [ -e /usr/lib/python3/dist-packages/pyverbs ] || echo python3-pyverbs
        command -v ibv_devinfo >/dev/null || echo ibverbs-utils
        command -v ib_send_lat >/dev/null || echo perftest
        ;;
    esac
}

# apt_get ARGUMENT...: quietly; waits for other users of the package manager
apt_get() {
    # RUNLEVEL=1: installing a package does not start its daemon.
    DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -qq -o DPkg::Lock::Timeout=300 "$@"
}

# install_packages EXTRAS
install_packages() {
    local missing
    [ -z "${PYTHON:-}" ] || command -v "$PYTHON" >/dev/null || die "PYTHON=$PYTHON: there is no such program"
    missing=$(missing_packages "$1" | tr '\n' ' ')
    [ -n "${missing// /}" ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing: $missing"
        apt_get update && apt_get install -y --no-install-recommends $missing >/dev/null ||
            die "apt-get could not install: $missing"
    else
        die "missing: these packages (Debian's names; install them as root): $missing"
    fi
}

# fitting_venv: whether .venv is of this folder, not a copy of the .venv of another, and of the Python named by PYTHON.
fitting_venv() {
    local which='import sys; print(sys.base_prefix, sys.version)'
    # The programs of a virtual environment name its folder.
    grep -qF "$PWD/.venv" .venv/bin/activate 2>/dev/null &&
        { [ -z "${PYTHON:-}" ] || [ "$("$python" -c "$which")" = "$(.venv/bin/python -c "$which")" ]; }
}

# prepare EXTRAS: makes .venv and builds the project in place.
#
# .venv has the project as an editable install: Python finds the same build in the clone and elsewhere.
# RMEMCACHED_DEBUG, RMEMCACHED_EXTENSIONS and CFLAGS reach the build; its output is in build/build.log.
prepare() {
    local extras=$1 asked requirements pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet)
    install_packages "$extras"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "Python 3.11 or later is needed; $("$python" -V) was found (PYTHON=... names another)"
    fitting_venv || "$python" -m venv --clear .venv
    # pip takes seconds to find nothing to do. It runs after changes of its input files.
    asked="$extras $(cat pyproject.toml rmemcached/__init__.py | cksum)"
    if ! grep -qxF "$asked" .venv/prepared 2>/dev/null; then
        mapfile -t requirements < <(.venv/bin/python -c 'import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")')
        "${pip[@]}" install "${requirements[@]}" || die "what the build needs could not be installed"
        # pip installs no extension module: it would compile all of them each time. compat: the install is a line in a
        # .pth file, which costs no time when Python starts.
        RMEMCACHED_EXTENSIONS=none "${pip[@]}" install --no-build-isolation --config-settings editable_mode=compat \
            --editable ".[$extras]" || die "the installation failed"
        echo "$asked" >>.venv/prepared
    fi
    mkdir -p build
    echo "building; the first time takes some minutes (its output: build/build.log)"
    .venv/bin/python setup.py build_ext --inplace >build/build.log 2>&1 || {
        cat build/build.log >&2
        die "the build failed"
    }
    # `man rmemcached` and completion, where .venv is activated.
    .venv/bin/python -P -m rmemcached.reference .venv || die "the manual pages could not be made"
}

# build_beside KIND VARIABLE=VALUE...: after `prepare`, builds the project with these variables into build/KIND/site.
# The build in place stays as it is; Python imports the new build with PYTHONPATH=$PWD/build/KIND/site.
build_beside() {
    local kind=$1
    shift
    env RMEMCACHED_TESTING=1 "$@" .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps \
        --upgrade --target "build/$kind/site" . || die "the $kind build failed"
}

# check_imported KIND COMMAND...: ends the script unless this command, a Python with its environment, imports the
# build.
check_imported() {
    local kind=$1
    shift
    "$@" -P -c 'import sys; from rmemcached.store import store
sys.exit(0 if store.__file__.startswith(sys.argv[1]) else f"{store.__file__} would be tested")' "$PWD/build/$kind/" ||
        die "the $kind build is not the one that Python imports"
}
