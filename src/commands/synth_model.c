#include "commands/synth_model.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "commands/interrupt.h"
#include "commands/model_path.h"
#include "quantize/synth.h"

static const char PREFIX[] = "synth:";

bool synth_model_named(const char *name)
{
    return name && text_starts_with(name, PREFIX);
}

/* CONFIG and FORMAT of synth:CONFIG[:FORMAT]. */
static bool parse_name(const char *name, text *config, synth_format *out, error *err)
{
    const char *rest = name + strlen(PREFIX), *colon = strchr(rest, ':');
    text_add(config, rest, colon ? (size_t)(colon - rest) : strlen(rest));
    *out = SYNTH_MXFP4;
    if (config->length == 0)
        return error_set(err, ERROR_USAGE, "%s: expected synth:CONFIG or synth:CONFIG:FORMAT, as in synth:glm-mini:mxfp4-attn8", name);
    if (!colon)
        return true;
    text known = {0};
    for (int i = 0; i < SYNTH_FORMATS; i++) {
        if (strcmp(synth_format_names[i], colon + 1) == 0)
            *out = (synth_format)i;
        text_add_format(&known, "%s%s", i ? ", " : "", synth_format_names[i]);
    }
    bool ok = strcmp(synth_format_names[*out], colon + 1) == 0;
    if (!ok)
        error_set(err, ERROR_USAGE, "%s: the format is \"%s\", expected one of %s", name, colon + 1, known.data);
    text_free(&known);
    return ok;
}

static bool make_directory(text *directory, error *err)
{
    const char *where = getenv("TMPDIR");
    path_join(directory, where && *where ? where : "/tmp", "drawbridge-synth-XXXXXX");
    if (mkdtemp(directory->data))
        return true;
    error_set_errno(err, ERROR_RUNTIME, "cannot make a directory %s for the weights; TMPDIR says where", directory->data);
    text_clear(directory);
    return false;
}

bool synth_model_make(const char *name, int layers, int threads, text *directory, error *err)
{
    text config = {0}, path = {0}, tokenizer = {0};
    synth_options o = {.layers = layers, .shard_bytes = UINT64_C(5000000000), .threads = threads, .stop = &interrupt_count};
    synth_job *j = NULL;
    bool already;
    signal(SIGXFSZ, SIG_IGN); /* a file above the limit is then an error of write */
    if (parse_name(name, &config, &o.format, err) && config_path_resolve(config.data, &path, err) &&
        model_path_resolve(NULL, "tokenizer.json", &tokenizer, err)) {
        o.config = path.data;
        o.text_model = tokenizer.data;
        j = synth_open(&o, err);
    }
    bool ok = j && make_directory(directory, err);
    if (ok) {
        log_info("%s: making %.2f GB of weights in %s for this run", name, (double)synth_plan(j)->bytes * 1e-9, directory->data);
        ok = synth_run(j, directory->data, &already, err);
    }
    synth_close(j);
    if (!ok)
        synth_model_remove(directory);
    text_free(&config);
    text_free(&path);
    text_free(&tokenizer);
    return ok;
}

void synth_model_remove(text *directory)
{
    text path = {0};
    DIR *d = directory->length ? opendir(directory->data) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        text_clear(&path);
        path_join(&path, directory->data, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlink(path.data);
    }
    if (d)
        closedir(d);
    if (directory->length && rmdir(directory->data) != 0)
        log_warning("%s could not be removed", directory->data);
    text_clear(directory);
    text_free(&path);
}
