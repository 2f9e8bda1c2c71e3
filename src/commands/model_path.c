#include "commands/model_path.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"

static const char *const places[] = {"../models", "../../models", "../share/drawbridge/models"};
enum { PLACE_COUNT = sizeof places / sizeof places[0] };

static bool has_file(const char *directory, const char *name)
{
    text path = {0};
    path_join(&path, directory, name);
    bool found = file_exists(path.data);
    text_free(&path);
    return found;
}

static bool check_given(const char *given, const char *needed, error *err)
{
    if (!file_exists(given))
        return error_set_errno(err, ERROR_INPUT, "cannot open the model %s", given);
    if (!file_is_directory(given))
        return error_set(err, ERROR_INPUT, "%s is a file, expected a model directory that holds %s", given, needed);
    if (!has_file(given, needed))
        return error_set(err, ERROR_INPUT, "%s has no %s, so it is not a complete model directory", given, needed);
    return true;
}

/* The directory of the running executable. */
static bool executable_directory(text *out, error *err)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return error_set_errno(err, ERROR_RUNTIME, "cannot find the executable's own path in /proc/self/exe; name a MODEL");
    path[n] = '\0';
    char *slash = strrchr(path, '/');
    text_add(out, path, slash ? (size_t)(slash - path) : 0);
    return true;
}

/* Removes "NAME/.." pairs. The executable's path has no links left, so this does not change what it names. */
static void simplify_path(text *path)
{
    char *up;
    while ((up = strstr(path->data, "/../"))) {
        char *start = up;
        while (start > path->data && start[-1] != '/')
            start--;
        memmove(start, up + 4, strlen(up + 4) + 1);
        path->length = strlen(path->data);
    }
}

/* Looks in every place that may hold what is shipped: models/NAME, which must have the file `needed`. tried: the places, for messages. */
static bool find_shipped(const char *name, const char *needed, text *out, text *tried, error *err)
{
    text self = {0}, models = {0};
    bool found = false;
    bool known = executable_directory(&self, err);
    for (int i = 0; known && i < PLACE_COUNT && !found; i++) {
        text_clear(&models);
        path_join(&models, self.data, places[i]);
        text_clear(out);
        path_join(out, models.data, name);
        found = has_file(out->data, needed);
        simplify_path(out);
        text_add_format(tried, "%s%s", i ? ", " : "", out->data);
    }
    text_free(&self);
    text_free(&models);
    return found;
}

static bool find_built_in(const char *needed, text *out, error *err)
{
    text tried = {0};
    bool found = find_shipped("nano", needed, out, &tried, err);
    if (!found && tried.length)
        error_set(err, ERROR_INPUT, "the built-in model is not there (no %s in %s); name a model directory", needed, tried.data);
    text_free(&tried);
    return found;
}

static const char *const tuned_places[] = {"../tuned", "../../tuned", "../share/drawbridge/tuned"};
enum { TUNED_PLACE_COUNT = sizeof tuned_places / sizeof tuned_places[0] };
_Static_assert((int)TUNED_PLACE_COUNT == (int)PLACE_COUNT, "tuned tables lie beside the built-in models");

bool tuned_path_resolve(const char *given, text *out, error *err)
{
    text self = {0};
    text_clear(out);
    if (given) {
        text_add_text(out, given);
        return file_is_directory(given) ||
               error_set(err, ERROR_INPUT, "--tuned %s: there is no such directory; drawbridge tune makes one", given);
    }
    bool ok = executable_directory(&self, err), found = false;
    for (int i = 0; ok && i < TUNED_PLACE_COUNT && !found; i++) {
        path_join(out, self.data, tuned_places[i]);
        found = file_is_directory(out->data);
        simplify_path(out);
    }
    if (!found)
        text_clear(out);
    text_free(&self);
    return ok;
}

bool tuned_path_for_writing(const char *given, text *out, error *err)
{
    text self = {0};
    text_clear(out);
    if (given) {
        text_add_text(out, given);
        return true;
    }
    if (!tuned_path_resolve(NULL, out, err) || out->length)
        return err->code == ERROR_NONE;
    bool ok = executable_directory(&self, err);
    int place = 0;
    for (int i = PLACE_COUNT - 1; ok && i >= 0; i--) {
        path_join(out, self.data, places[i]);
        if (has_file(out->data, "nano"))
            place = i;
    }
    if (ok) {
        path_join(out, self.data, tuned_places[place]);
        simplify_path(out);
    }
    text_free(&self);
    return ok;
}

bool model_path_resolve(const char *given, const char *needed, text *out, error *err)
{
    text_clear(out);
    if (!given)
        return find_built_in(needed, out, err);
    if (!check_given(given, needed, err))
        return false;
    text_add_text(out, given);
    return true;
}

bool config_path_resolve(const char *given, text *out, error *err)
{
    text file = {0}, directory = {0}, tried = {0};
    error ignored = {0};
    text_add_format(&file, "%s.json", given);
    text_clear(out);
    bool found = !strchr(given, '/') && find_shipped("configs", file.data, &directory, &tried, &ignored);
    if (found)
        path_join(out, directory.data, file.data);
    else if (file_is_directory(given))
        path_join(out, given, "config.json");
    else
        text_add_text(out, given);
    bool ok = file_exists(out->data);
    if (!ok && tried.length)
        error_set(err, ERROR_INPUT, "%s is neither a config.json nor a shipped configuration such as glm-mini or glm-5.2 (no %s in %s)",
                  given, file.data, tried.data);
    else if (!ok)
        error_set_errno(err, ERROR_INPUT, "cannot open %s", out->data);
    text_free(&file);
    text_free(&directory);
    text_free(&tried);
    return ok;
}
