#include "commands/interrupt.h"

#include <unistd.h>

#include "base/error.h"

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
