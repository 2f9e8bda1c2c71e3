#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/text.h"

static log_level level_now = LOG_NORMAL;

void log_set_level(log_level level)
{
    level_now = level;
}

log_level log_level_now(void)
{
    return level_now;
}

/* One write for the whole line: standard error is not buffered, and threads and ranks share it. */
static void print_line(const char *prefix, const char *format, va_list args)
{
    text line = {0};
    text_add_text(&line, prefix);
    text_add_arguments(&line, format, args);
    text_add_char(&line, '\n');
    fwrite(line.data, 1, line.length, stderr);
    text_free(&line);
}

void log_info(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (level_now >= LOG_NORMAL)
        print_line("", format, args);
    va_end(args);
}

void log_detail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (level_now >= LOG_VERBOSE)
        print_line("", format, args);
    va_end(args);
}

void log_warning(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    print_line("warning: ", format, args);
    va_end(args);
}

bool terminal_has_colour(int fd)
{
    const char *no_colour = getenv("NO_COLOR");
    return isatty(fd) && !(no_colour && no_colour[0]);
}

struct progress {
    const char *what, *unit;
    double total;
    uint64_t started_us, shown_us; /* shown_us: time of the last line */
    bool terminal, visible;
};

enum { PROGRESS_SILENT_US = 2000000, PROGRESS_TERMINAL_US = 200000, PROGRESS_PLAIN_US = 10000000 };

progress *progress_start(const char *what, const char *unit, double total)
{
    progress *p = mem_alloc(1, sizeof *p);
    uint64_t now = clock_now_us();
    *p = (progress){what, unit, total, now, now, isatty(STDERR_FILENO) == 1, false};
    return p;
}

void progress_update(progress *p, double done)
{
    uint64_t now = clock_now_us(), interval = p->terminal ? PROGRESS_TERMINAL_US : PROGRESS_PLAIN_US;
    if (level_now < LOG_NORMAL || now - p->started_us < PROGRESS_SILENT_US || now - p->shown_us < interval)
        return;
    double seconds = (double)(now - p->started_us) * 1e-6, rate = done / seconds;
    fprintf(stderr, "%s%s: %.0f", p->terminal ? "\r" : "", p->what, done);
    if (p->total > 0)
        fprintf(stderr, " of %.0f %s (%.0f%%), %.1f %s/s, %.0f s left", p->total, p->unit, 100 * done / p->total, rate, p->unit,
                rate > 0 ? (p->total - done) / rate : 0.0);
    else
        fprintf(stderr, " %s, %.1f %s/s", p->unit, rate, p->unit);
    fputs(p->terminal ? "\x1b[K" : "\n", stderr);
    fflush(stderr);
    p->shown_us = now;
    p->visible = true;
}

void progress_finish(progress *p)
{
    if (!p)
        return;
    if (p->visible && p->terminal)
        fputs("\r\x1b[K", stderr);
    free(p);
}
