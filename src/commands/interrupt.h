/* Ctrl-C: counted instead of ending the program, so that a command can stop what it does and clean up. */
#ifndef COMMANDS_INTERRUPT_H
#define COMMANDS_INTERRUPT_H

#include <signal.h>

#include "base/error.h"
#include "base/text.h"

/* From here on SIGINT counts; system calls that wait are interrupted. The third one ends the program at once, in
 * case nothing looks at the count. */
void interrupt_catch(void);

/* How many came since the last reset; the address is for code that polls it. */
extern volatile sig_atomic_t interrupt_count;

/* Lines of standard input that Ctrl-C can interrupt at any moment. Zero-initialise; text_free(&r->bytes) at the end. */
typedef struct line_reader {
    text bytes;     /* read so far; lines before `next` were given out */
    size_t next;
    bool at_end;    /* standard input has ended */
} line_reader;

/* The next line without its newline, valid until the next call; the last one may lack its newline. False at the end, when
 * interrupt_count is not zero, or with err set. */
bool line_reader_next(line_reader *r, view *line, error *err);

#endif
