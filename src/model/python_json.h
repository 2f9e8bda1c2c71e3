/* JSON printed as Python's json.dumps(value, ensure_ascii=False) prints it, byte for byte: what the tojson filter of
 * chat templates gives. Keys keep their order, separators are ", " and ": ", floats are printed by repr(). */
#ifndef MODEL_PYTHON_JSON_H
#define MODEL_PYTHON_JSON_H

#include <jansson.h>

#include "base/text.h"

void python_json_add(text *out, const json_t *value);

/* The shortest decimal that reads back as value, in repr()'s notation. value must be finite. */
void python_float_add(text *out, double value);

/* The inside of a JSON string: quotes, backslashes and control characters escaped, all else as it is. */
void python_escape_add(text *out, const char *bytes, size_t count);

/* Whether Python's str.strip() removes this code point. */
bool python_is_space(uint32_t code_point);

/* s without the white space that str.strip() removes. s must be valid UTF-8. */
view python_strip(view s);

#endif
