#include "commands/interrupt.h"

#include <errno.h>
#include <string.h>
#include <sys/select.h>
#include <unistd.h>

volatile sig_atomic_t interrupt_count;

static void count_signal(int number)
{
    (void)number;
    interrupt_count = interrupt_count + 1;
    if (interrupt_count >= 3)
        _exit(ERROR_INTERRUPTED);
}

void interrupt_catch(void)
{
    struct sigaction action = {.sa_handler = count_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

/* Waits until standard input can be read. SIGINT is let through only while waiting, so none is missed between the look at
 * the count and the wait. False when one came. */
static bool wait_for_input(void)
{
    sigset_t block, before;
    fd_set set;
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigprocmask(SIG_BLOCK, &block, &before);
    int ready = 0;
    while (interrupt_count == 0 && ready <= 0) {
        FD_ZERO(&set);
        FD_SET(STDIN_FILENO, &set);
        ready = pselect(STDIN_FILENO + 1, &set, NULL, NULL, NULL, &before);
        if (ready < 0 && errno != EINTR)
            break;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return interrupt_count == 0;
}

static bool read_more(line_reader *r, error *err)
{
    char buffer[4096];
    if (!wait_for_input())
        return false;
    ssize_t n = read(STDIN_FILENO, buffer, sizeof buffer);
    if (n < 0 && errno != EINTR)
        return error_set_errno(err, ERROR_INPUT, "cannot read standard input");
    if (n > 0)
        text_add(&r->bytes, buffer, (size_t)n);
    r->at_end = n == 0;
    return true;
}

bool line_reader_next(line_reader *r, view *line, error *err)
{
    size_t searched = r->next;
    const char *newline = NULL;
    for (;;) {
        if (r->bytes.length > searched)
            newline = memchr(r->bytes.data + searched, '\n', r->bytes.length - searched);
        if (newline || r->at_end)
            break;
        searched = r->bytes.length;
        if (!read_more(r, err))
            return false;
    }
    if (!newline && r->next == r->bytes.length)
        return false;
    size_t end = newline ? (size_t)(newline - r->bytes.data) : r->bytes.length;
    *line = (view){r->bytes.data + r->next, end - r->next};
    r->next = newline ? end + 1 : end;
    return true;
}
