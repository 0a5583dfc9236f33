"""Builds rmemcached: one extension module per .pyx file.

Environment:
    RMEMCACHED_DEBUG=1            debug build: -O0, -g, C assertions on
    RMEMCACHED_SANITIZE=KIND      build for a sanitizer: thread, address or undefined; or fuzz: for the fuzzer, with two
                                  sanitizers and a record of executed code (see script/sanitize)
    RMEMCACHED_TESTING=1          build the tests' own modules, too; the default of a build in place (0: without)
    CC=COMMAND                    the compiler; by default Python's own, through an installed ccache
    RMEMCACHED_EXTENSIONS=a,b     build only the named extension modules, or "none" (development)
    RMEMCACHED_PYTHON=COMMAND     the Python that runs the build's modules, in a build for another kind of machine
                                  (see script/aarch64)
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from fnmatch import fnmatch
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build as build_command
from setuptools.command.build_ext import build_ext as build_extensions_command

ROOT = Path(__file__).parent
DEBUG = os.environ.get("RMEMCACHED_DEBUG", "0") not in ("", "0")
SANITIZE = os.environ.get("RMEMCACHED_SANITIZE", "")
TESTING = os.environ.get("RMEMCACHED_TESTING", "1" if "--inplace" in sys.argv else "0") not in ("", "0")
ONLY = [name for name in os.environ.get("RMEMCACHED_EXTENSIONS", "").split(",") if name]

# Importable packages. rmemcached/client is a link to client/, rmemcached/bench to bench/.
PACKAGES = (
    "rmemcached",
    "rmemcached.sys",
    "rmemcached.store",
    "rmemcached.protocol",
    "rmemcached.flash",
    "rmemcached.verbs",
    "rmemcached.verbs.objects",
    "rmemcached.rdma",
    "rmemcached.streams",
    "rmemcached.perftest",
    "rmemcached.server",
    "rmemcached.tools",
    "rmemcached.client",
    "rmemcached.client.api",
    "rmemcached.client.wire",
    "rmemcached.client.transport",
    "rmemcached.connectors",
    "rmemcached.bench",
    "rmemcached.reference",
)

# Packages whose source folder is beside rmemcached/, with a link in their place.
LINKED = ("client", "bench")

# Needed headers, and the Debian package of each.
HEADERS = {
    "Python.h": "python3-dev",
    "infiniband/verbs.h": "libibverbs-dev",
    "rdma/rdma_user_cm.h": "linux-libc-dev",
    "isa-l.h": "libisal-dev",
    "xxhash.h": "libxxhash-dev",
    "openssl/ssl.h": "libssl-dev",
}

COMPILE_ARGS = ["-std=gnu11", "-Wall", "-Wno-unused-function", "-pthread"]
# Without optimization the compiler warns of strings whose length it does not know.
COMPILE_ARGS += ["-O0", "-g", "-Wno-format-truncation"] if DEBUG else ["-O2", "-g1", "-fno-plt", "-falign-functions=64"]
LINK_ARGS = ["-pthread"]
# Python's own flags have -DNDEBUG, which removes assertions.
COMPILE_ARGS += ["-UNDEBUG" if DEBUG or SANITIZE else "-DNDEBUG"]
SANITIZERS = {"thread": "thread", "address": "address", "undefined": "undefined", "fuzz": "address,undefined"}
if SANITIZE in SANITIZERS:
    COMPILE_ARGS += [f"-fsanitize={SANITIZERS[SANITIZE]}", "-fno-omit-frame-pointer", "-O1", "-g"]
    LINK_ARGS += [f"-fsanitize={SANITIZERS[SANITIZE]}"]
if SANITIZE == "thread":
    # The warning is about fences, unknown to the sanitizer. Here they only order atomic accesses, which are known.
    COMPILE_ARGS += ["-Wno-tsan"]
# Each kind of build has its own objects.
KIND = SANITIZE or ("debug" if DEBUG else "")
BUILD_BASE = f"build/{KIND}" if KIND else "build"

# The tests' own modules, and their parts.
TEST_MODULES = "_testing*"

# The fuzzer's subject, and the record of executed code.
FUZZED = "rmemcached.verbs.soft"
COVERAGE = "tests/verbs/coverage.c"

# Libraries linked to a module's C code.
LIBRARIES = {
    "rmemcached.flash.flash": ["isal"],
    "rmemcached.verbs.soft": ["isal"],
    "rmemcached.streams.tls": ["dl"],
    "rmemcached.verbs.system": ["dl"],  # a part of libc since glibc 2.34
    "rmemcached.server.sasl_library": ["dl"],
}

# Libraries without Python, made of a C file that includes the C code of a module, and of a version script (.map).
PLAIN = {"rmemcached.verbs.plain.ibverbs": ("rmemcached.verbs.soft", "libibverbs.so.1")}
# The linker drops the module's parts for Python. -z defs: the build fails if such a part is left. -z nodelete: the
# library's threads outlive a dlclose.
PLAIN_COMPILE_ARGS = ["-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections"]
PLAIN_LINK_ARGS = ["-Wl,--gc-sections", "-Wl,-z,defs", "-Wl,-z,nodelete"]
if SANITIZE in ("address", "fuzz"):
    # With a record of its variables the sanitizer would keep the parts for Python.
    PLAIN_COMPILE_ARGS += ["--param", "asan-globals=0"]

DIRECTIVES = {
    "language_level": "3",
    "cdivision": True,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "binding": False,
    "embedsignature": True,
    "embedsignature.format": "clinic",
}

# Packages whose modules need no GIL: the client, its parts, and its benchmarks. Other packages need not be here: their
# threads do without Python.
WITHOUT_GIL = (
    "rmemcached",
    *(f"rmemcached.{name}" for name in ("bench", "rdma", "streams", "sys", "verbs")),
    *(f"rmemcached.client{floor}" for floor in ("", ".api", ".wire", ".transport")),
)


def compiler() -> list[str]:
    """Returns the words of the C compiler's command, as distutils will choose the compiler."""
    return (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()


def take_ccache() -> None:
    """Compiles through an installed ccache, unless the user has chosen a compiler."""
    if not os.environ.get("CC") and shutil.which("ccache"):
        os.environ["CC"] = f"ccache {' '.join(compiler())}"


def check_machine(byte_order: str, pointer_size: int, page_size: int) -> None:
    """Ends the build with a line on a machine unfit for the code."""
    for wrong, what in (
        (byte_order != "little", f"a little-endian machine, and this one is {byte_order}-endian"),
        (pointer_size != 8, f"a 64-bit machine, and here pointers have {8 * pointer_size} bits"),
        (page_size != 4096, f"memory pages of 4 KB, and this kernel's have {page_size // 1024} KB: boot one with 4 KB"),
    ):
        if wrong:
            sys.exit(f"rmemcached: it needs {what}")


def check_requirements() -> None:
    """Ends the build with a line that names the package of a missing compiler or header."""
    check_machine(sys.byteorder, struct.calcsize("P"), os.sysconf("SC_PAGESIZE"))
    if SANITIZE and SANITIZE not in SANITIZERS:
        sys.exit(f"rmemcached: RMEMCACHED_SANITIZE={SANITIZE} is not one of {', '.join(SANITIZERS)}")
    cc = compiler()
    if shutil.which(cc[0]) is None:
        sys.exit(f"rmemcached: no C compiler ({cc[0]}) found: apt-get install gcc libc6-dev")
    include = sysconfig.get_paths()["include"]
    for header, package in HEADERS.items():
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder) / "probe.c"
            probe.write_text(f"#include <{header}>\n")
            done = subprocess.run([*cc, "-I", include, "-fsyntax-only", str(probe)], capture_output=True, check=False)
        if done.returncode:
            sys.exit(f"rmemcached: the header <{header}> is missing: apt-get install {package}")


def version() -> str:
    """The version in rmemcached/__init__.py, read without an import."""
    for line in (ROOT / "rmemcached" / "__init__.py").read_text().splitlines():
        if line.startswith("__version__"):
            return line.split('"')[1]
    raise SystemExit("rmemcached: rmemcached/__init__.py has no __version__")


def parts(source: Path) -> set[Path]:
    """The files included by a .pyx file: parts of its C unit, not modules of their own."""
    included = re.findall(r'^\s*include "([^"]+)"', source.read_text(), re.MULTILINE)
    return {source.parent / name for name in included}


def macros(name: str) -> list[tuple[str, str]]:
    """The software devices show the version as their firmware's."""
    return [("RMC_VERSION", f'"{version()}"')] if name == "rmemcached.verbs.soft" else []


def plain_libraries() -> list[Extension]:
    """An Extension for each library in PLAIN, to be built where its module is."""
    found = []
    for name, (module, soname) in PLAIN.items():
        path = name.replace(".", "/")
        if not ONLY or module in ONLY:
            found.append(
                Extension(
                    name,
                    [f"{path}.c"],
                    include_dirs=["build/cython"],
                    libraries=LIBRARIES[module],
                    define_macros=macros(module),
                    extra_compile_args=COMPILE_ARGS + PLAIN_COMPILE_ARGS,
                    extra_link_args=[
                        *(*LINK_ARGS, *PLAIN_LINK_ARGS),
                        *(f"-Wl,-soname,{soname}", f"-Wl,--version-script={path}.map"),
                    ],
                    depends=[f"build/cython/{module.replace('.', '/')}.c", f"{path}.map"],
                )
            )
    return found


def extensions() -> list[Extension]:
    """An Extension for each .pyx file of the package folders, without included files."""
    found = []
    unknown = set(ONLY) - {"none"}
    folders = {package: ROOT / package.replace(".", "/") for package in PACKAGES}
    included = {part for folder in folders.values() for source in folder.glob("*.pyx") for part in parts(source)}
    for package, folder in folders.items():
        for source in sorted(set(folder.glob("*.pyx")) - included):
            name = f"{package}.{source.stem}"
            unknown.discard(name)
            if (ONLY and name not in ONLY) or (fnmatch(source.name, TEST_MODULES) and not TESTING):
                continue
            files, arguments = [str(source.relative_to(ROOT))], COMPILE_ARGS
            if SANITIZE == "fuzz" and name == FUZZED:
                files, arguments = [*files, COVERAGE], [*COMPILE_ARGS, "-fsanitize-coverage=trace-pc"]
            found.append(
                Extension(
                    name,
                    files,
                    libraries=LIBRARIES.get(name, []),
                    define_macros=macros(name),
                    depends=["rmemcached/__init__.py"] if macros(name) else [],
                    extra_compile_args=arguments,
                    extra_link_args=LINK_ARGS,
                )
            )
    if unknown:
        sys.exit(f"rmemcached: no such extension module: {', '.join(sorted(unknown))}")
    return found


def built_as(name: str, suffix: str) -> str:
    """The path of a built module, or of a library in PLAIN, in a folder of packages. suffix: a module's."""
    path = Path(*name.split("."))
    return str(path.with_name(PLAIN[name][1]) if name in PLAIN else path.with_name(f"{path.name}.{suffix}"))


def remove_stale(modules: list[Extension]) -> None:
    """Removes leftovers of earlier builds that this build would take for its own.

    A build in place does not notice that a module was compiled with other options. A wheel takes everything in the
    build's folder, also former modules, and modules built with RMEMCACHED_TESTING only.
    """
    if "--inplace" in sys.argv:
        for module in modules:
            options = ROOT / "build" / "inplace" / module.name
            if not options.exists() or options.read_text() != " ".join(COMPILE_ARGS):
                for built in ROOT.glob(built_as(module.name, "*.so")):
                    built.unlink()
                options.parent.mkdir(parents=True, exist_ok=True)
                options.write_text(" ".join(COMPILE_ARGS))
    elif not ONLY:
        kept = [built_as(module.name, "*.so") for module in modules]
        for folder in ROOT.glob(f"{BUILD_BASE}/lib*"):
            for path in filter(Path.is_file, folder.rglob("*")):
                if not any(fnmatch(str(path.relative_to(folder)), pattern) for pattern in kept):
                    path.unlink()


def link_packages() -> None:
    """Makes the links rmemcached/client and rmemcached/bench unless they exist.

    A source distribution has files only, each once. Archives and file systems without links have in a link's place a
    file with the name of its target.
    """
    for name in LINKED:
        link = ROOT / "rmemcached" / name
        if not link.is_dir():
            link.unlink(missing_ok=True)
            link.symlink_to(Path("..") / name, target_is_directory=True)


def data_files(lib: Path, made: Path) -> list[tuple[str, list[str]]]:
    """Manual pages and completion of shells, made by the modules in `lib`, which were just built.

    A developers' build has none, nor has a build of some modules or with a sanitizer.
    """
    if KIND or ONLY or TESTING:
        return []
    shutil.rmtree(made, ignore_errors=True)
    path = os.pathsep.join(filter(None, (str(lib.resolve()), os.environ.get("PYTHONPATH"))))
    python = os.environ.get("RMEMCACHED_PYTHON") or sys.executable
    command = [python, "-P", "-m", "rmemcached.reference", str(made.resolve())]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)
    if done.returncode:
        sys.exit("rmemcached: the manual pages could not be made of what was built")
    found: dict[str, list[str]] = {}
    for file in sorted(filter(Path.is_file, made.rglob("*"))):
        found.setdefault(str(file.parent.relative_to(made)), []).append(str(file))
    return sorted(found.items())


class Build(build_command):
    """Adds files for man and shells, which the wheel puts into share/."""

    def run(self) -> None:
        super().run()
        self.distribution.data_files = data_files(Path(self.build_lib), Path(self.build_base) / "reference")


class BuildExtensions(build_extensions_command):
    """Gives a library in PLAIN its own name."""

    def get_ext_filename(self, fullname: str) -> str:
        # setuptools asks for a name without packages, too.
        for name, (_, soname) in PLAIN.items():
            if fullname in (name, name.rpartition(".")[2]):
                return str(Path(*fullname.split(".")).with_name(soname))
        return str(super().get_ext_filename(fullname))


def build() -> None:
    link_packages()
    modules: list[Extension] = []
    if {"build_ext", "bdist_wheel", "build", "install", "develop", "editable_wheel"} & set(sys.argv):
        take_ccache()
        check_requirements()
        from Cython.Build import cythonize
        from Cython.Compiler import Options

        # A -Werror in CFLAGS holds for Cython's warnings, too: it warns of a structure made without a member, which
        # would have garbage there.
        Options.warning_errors = "-Werror" in os.environ.get("CFLAGS", "")
        found = extensions()
        for without_gil in (False, True):
            modules += cythonize(
                [module for module in found if (module.name.rpartition(".")[0] in WITHOUT_GIL) == without_gil],
                compiler_directives={**DIRECTIVES, "freethreading_compatible": without_gil},
                include_path=[str(ROOT)],
                # All kinds of builds compile the same C.
                build_dir="build/cython",
                nthreads=os.cpu_count() or 1,
                emit_linenums=True,
            )
        # The largest first, so that no compiler ends long after the others.
        modules.sort(key=lambda module: -os.path.getsize(module.sources[0]))
        modules = plain_libraries() + modules
        remove_stale(modules)
    setup(
        version=version(),
        packages=list(PACKAGES),
        include_package_data=False,
        package_data={package: ["*.pxd", "**/*.pxd", "*.pyi", "py.typed"] for package in PACKAGES},
        exclude_package_data={} if TESTING else {"": [TEST_MODULES, f"*/{TEST_MODULES}"]},
        ext_modules=modules,
        cmdclass={"build": Build, "build_ext": BuildExtensions},
        options={"build": {"build_base": BUILD_BASE}, "build_ext": {"parallel": os.cpu_count() or 1}},
        zip_safe=False,
    )


if __name__ == "__main__":
    build()
