/* Messages for people go to standard error; standard output is for data. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stdbool.h>

typedef enum log_level { LOG_QUIET, LOG_NORMAL, LOG_VERBOSE } log_level;

void log_set_level(log_level level);
log_level log_level_now(void);
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));    /* LOG_NORMAL and above */
void log_detail(const char *format, ...) __attribute__((format(printf, 1, 2)));  /* LOG_VERBOSE only */
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2))); /* "warning: ", always */

/* Whether escape sequences may be written to this stream: a terminal, and NO_COLOR is not set. */
bool terminal_has_colour(int fd);

/* Progress of something that may take longer than two seconds: one line that rewrites itself on a terminal, a plain
 * line every ten seconds elsewhere, nothing at all when it is over sooner. Call as often as you like. */
typedef struct progress progress;

progress *progress_start(const char *what, const char *unit, double total); /* total 0: unknown */
void progress_update(progress *p, double done);
void progress_finish(progress *p); /* clears the line; frees p; NULL is allowed */

#endif
