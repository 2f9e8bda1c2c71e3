/* Ctrl-C: counted instead of ending the program, so that a command can stop what it does and clean up. */
#ifndef COMMANDS_INTERRUPT_H
#define COMMANDS_INTERRUPT_H

#include <signal.h>

/* From here on SIGINT counts; system calls that wait are interrupted. The third one ends the program at once, in
 * case nothing looks at the count. */
void interrupt_catch(void);

/* How many came since the last reset; the address is for code that polls it. */
extern volatile sig_atomic_t interrupt_count;

#endif
