/* Where unit tests find what is not in the repository: the BF16 master of the built-in model. */
#ifndef TESTS_FIXTURES_H
#define TESTS_FIXTURES_H

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

/* The directory of the BF16 master: $DRAWBRIDGE_NANO_BF16, else the directory CMake was given (tests/CMakeLists.txt).
 * NULL after printing the reason when there is no config.json; the test then calls skip(). */
static inline const char *fixture_nano_bf16(void)
{
    const char *directory = getenv("DRAWBRIDGE_NANO_BF16");
    if (!directory)
        directory = NANO_BF16_DIR;
    text path = {0};
    path_join(&path, directory, "config.json");
    bool found = file_exists(path.data);
    if (!found)
        printf("skipped: no BF16 master of the built-in model (%s); set DRAWBRIDGE_NANO_BF16 to its directory\n", path.data);
    text_free(&path);
    return found ? directory : NULL;
}

#endif
