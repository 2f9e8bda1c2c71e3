/* The program: finds the command, parses its options, runs it, and reports.
 *
 * Data goes to standard output, messages to standard error. A failed command leaves one sentence,
 * "drawbridge COMMAND: ...", and the exit status that base/error.h lists. A reader that closes our standard output
 * early (`| head`) ends the program quietly; any other failure to write it is an error. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "commands/commands.h"

static const command *const commands[] = {
    &command_serve, &command_chat, &command_run, &command_inspect, &command_quantize, &command_synth, &command_tune, &command_bench,
    &command_eval, &command_tokenize, &command_render, &command_logits, &command_help, &command_completion, &command_man, &command_version,
};

static const program drawbridge = {
    .name = "drawbridge",
    .version = DRAWBRIDGE_VERSION,
    .summary = "serve GLM-5.2-class models from one C program",
    .description = "Drawbridge runs models of the GLM-5 family (GlmMoeDsaForCausalLM) from their published checkpoints. A small model "
                   "of the same architecture is built in: commands that need a model use it when none is named.\n\n"
                   "Data goes to standard output, messages to standard error.",
    .date = "November 15, 2026",
    .commands = commands,
    .command_count = COUNT_OF(commands),
};

/* Prints "drawbridge COMMAND: sentence"; bytes that could steer a terminal become "?". */
static void print_error(const char *command_name, const error *err)
{
    char sentence[sizeof err->text];
    size_t n = 0;
    for (const char *s = err->text; *s; s++)
        sentence[n++] = ((unsigned char)*s < 0x20 || *s == 0x7F) ? '?' : *s;
    sentence[n] = '\0';
    fprintf(stderr, "drawbridge%s%s: %s\n", command_name ? " " : "", command_name ? command_name : "", sentence);
    if (err->code == ERROR_USAGE)
        fprintf(stderr, "see drawbridge %s%s\n", command_name ? command_name : "help", command_name ? " --help" : "");
}

/* Keeps files that are opened later from becoming standard streams when the caller closed those: reading or
 * writing them then fails as it should. */
static void occupy_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
            return;
}

static bool reader_is_gone(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP));
}

/* Writes out what is buffered; a failure that is not the reader's wish becomes the exit status. */
static int finish_output(const char *command_name, int status)
{
    errno = 0;
    bool failed = ferror(stdout) != 0;
    if ((fflush(stdout) == 0 && !failed) || reader_is_gone())
        return status;
    error err = {0};
    if (errno)
        error_set_errno(&err, ERROR_RUNTIME, "cannot write standard output");
    else
        error_set(&err, ERROR_RUNTIME, "cannot write standard output");
    print_error(command_name, &err);
    return status ? status : ERROR_RUNTIME;
}

static int show_help(const command *c, bool brief)
{
    text page = {0};
    if (brief)
        help_short(&drawbridge, c, &page);
    else
        help_long(&drawbridge, c, &page);
    fputs(page.data, stdout);
    text_free(&page);
    return ERROR_NONE;
}

static int report(const command *c, const error *err)
{
    if (err->text[0])
        print_error(c->name, err);
    return err->code == ERROR_NONE ? ERROR_RUNTIME : (int)err->code;
}

static int run_command(const command *c, int count, char **arguments)
{
    error err = {0};
    common_values common;
    void *values = mem_alloc(1, c->values_bytes ? c->values_bytes : 1);
    int status = ERROR_NONE;
    if (!options_parse(c, count, arguments, values, &common, &err)) {
        status = report(c, &err);
    } else if (common.short_help || common.long_help) {
        status = show_help(c, common.short_help);
    } else {
        log_set_level(common.quiet ? LOG_QUIET : common.verbose ? LOG_VERBOSE : LOG_NORMAL);
        if (!c->run(&drawbridge, values, &err))
            status = report(c, &err);
    }
    options_free(c, values);
    free(values);
    return finish_output(c->name, status);
}

static int show_status(void)
{
    printf("drawbridge %s: %s\n\n"
           "  drawbridge serve                     serve the built-in model and its web page\n"
           "  drawbridge chat                      talk to it in the terminal\n"
           "  drawbridge run -p 'What is 2 + 3?'   one question, one answer\n"
           "  drawbridge help                      all commands\n",
           drawbridge.version, drawbridge.summary);
    return finish_output(NULL, ERROR_NONE);
}

/* The spellings of help and version that people try before they know the commands. */
static const command *find_command(const char *name)
{
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return &command_help;
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0)
        return &command_version;
    return program_find(&drawbridge, name);
}

int main(int argc, char **argv)
{
    occupy_standard_streams();
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2)
        return show_status();
    const command *c = find_command(argv[1]);
    if (c)
        return run_command(c, argc - 2, argv + 2);
    error err = {0};
    if (argv[1][0] == '-')
        error_set(&err, ERROR_USAGE, "options come after a command, found %s", argv[1]);
    else
        program_unknown_command(&drawbridge, argv[1], &err);
    print_error(NULL, &err);
    return ERROR_USAGE;
}
