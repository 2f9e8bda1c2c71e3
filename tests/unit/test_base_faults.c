/* The base layer when the system says no. The functions of the C library that are defined here take the place of the real
 * ones in this program. */
#define _GNU_SOURCE /* cpu_set_t, syscall */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"
#include "base/threads.h"

static bool close_reports_failure;
static int closes_of_a_closed_descriptor;
static size_t smallest_cpu_set; /* bytes; 0: the real sched_getaffinity */

/* As Linux does: the descriptor is gone even when close reports an error. */
int close(int fd)
{
    long result = syscall(SYS_close, fd);
    if (result != 0 && errno == EBADF)
        closes_of_a_closed_descriptor++;
    if (result != 0 || !close_reports_failure)
        return (int)result;
    errno = EIO;
    return -1;
}

/* A machine with more CPUs than fit in a small set: all bits up to that size are on. */
int sched_getaffinity(pid_t pid, size_t bytes, cpu_set_t *set)
{
    if (smallest_cpu_set == 0)
        return (int)syscall(SYS_sched_getaffinity, pid, bytes, set) < 0 ? -1 : 0;
    if (bytes < smallest_cpu_set) {
        errno = EINVAL;
        return -1;
    }
    memset(set, 0, bytes);
    memset(set, 0xFF, smallest_cpu_set);
    return 0;
}

/* After a failed close the number may already belong to a file of another thread: closing it again would close that. */
static void test_a_failed_close_is_not_repeated(void **state)
{
    (void)state;
    error err = {0};
    char path[] = "/tmp/drawbridge-file-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    file_writer *w = file_writer_open(path, &err);
    assert_non_null(w);
    assert_true(file_writer_add(w, "new", 3, &err));
    close_reports_failure = true;
    assert_false(file_writer_commit(w, &err));
    close_reports_failure = false;
    assert_non_null(strstr(err.text, strerror(EIO)));
    assert_int_equal(closes_of_a_closed_descriptor, 0);
    unlink(path);
}

static void test_cores_of_a_large_machine(void **state)
{
    (void)state;
    smallest_cpu_set = 2048 / 8;
    assert_int_equal(machine_cores(), 2048);
    smallest_cpu_set = 0;
    assert_true(machine_cores() >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_failed_close_is_not_repeated),
        cmocka_unit_test(test_cores_of_a_large_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
