# Cross-compilation to 64-bit ARM, used by tools/aarch64.sh: Debian's cross compiler, the libraries below DRAWBRIDGE_ARM_ROOT,
# tests under qemu's user-mode emulation.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DRAWBRIDGE_ARM_ROOT)
set(libraries ${DRAWBRIDGE_ARM_ROOT}/usr/lib/aarch64-linux-gnu)
set(ENV{PKG_CONFIG_LIBDIR} ${libraries}/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${DRAWBRIDGE_ARM_ROOT})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=${libraries})
