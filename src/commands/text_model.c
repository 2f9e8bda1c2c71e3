#include "commands/text_model.h"

#include "base/file.h"
#include "commands/model_path.h"

static tokenizer *load_tokenizer(const char *directory, error *err)
{
    text file = {0};
    path_join(&file, directory, "tokenizer.json");
    tokenizer *t = tokenizer_load(file.data, err);
    text_free(&file);
    return t;
}

tokenizer *text_model_tokenizer(const char *model, error *err)
{
    text directory = {0};
    tokenizer *t = NULL;
    if (model_path_resolve(model, "tokenizer.json", &directory, err))
        t = load_tokenizer(directory.data, err);
    text_free(&directory);
    return t;
}

bool text_model_open(const char *model, const char *format_name, text_model *m, error *err)
{
    text directory = {0};
    bool ok = model_path_resolve(model, "tokenizer.json", &directory, err);
    if (ok)
        ok = (m->tokenizer = load_tokenizer(directory.data, err)) != NULL;
    if (ok)
        ok = (m->format = chat_format_load(directory.data, m->tokenizer, format_name, err)) != NULL;
    text_free(&directory);
    return ok;
}

void text_model_close(text_model *m)
{
    chat_format_free(m->format);
    tokenizer_free(m->tokenizer);
    *m = (text_model){0};
}
