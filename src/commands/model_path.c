#include "commands/model_path.h"

#include <string.h>
#include <unistd.h>

#include "base/file.h"

static const char *const built_in_places[] = {"../models/nano", "../../models/nano", "../share/drawbridge/models/nano"};
enum { BUILT_IN_PLACE_COUNT = sizeof built_in_places / sizeof built_in_places[0] };

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

static bool find_built_in(const char *needed, text *out, error *err)
{
    text self = {0}, tried = {0};
    bool found = false;
    if (executable_directory(&self, err)) {
        for (int i = 0; i < BUILT_IN_PLACE_COUNT && !found; i++) {
            path_join(out, self.data, built_in_places[i]);
            found = has_file(out->data, needed);
            simplify_path(out);
            text_add_format(&tried, "%s%s", i ? ", " : "", out->data);
        }
        if (!found)
            error_set(err, ERROR_INPUT, "the built-in model is not there (no %s in %s); name a model directory", needed, tried.data);
    }
    text_free(&self);
    text_free(&tried);
    return found;
}

static const char *const tuned_places[] = {"../tuned", "../../tuned", "../share/drawbridge/tuned"};
enum { TUNED_PLACE_COUNT = sizeof tuned_places / sizeof tuned_places[0] };
_Static_assert((int)TUNED_PLACE_COUNT == (int)BUILT_IN_PLACE_COUNT, "tuned tables lie beside the built-in models");

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
    for (int i = BUILT_IN_PLACE_COUNT - 1; ok && i >= 0; i--) {
        path_join(out, self.data, built_in_places[i]);
        if (file_is_directory(out->data))
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
