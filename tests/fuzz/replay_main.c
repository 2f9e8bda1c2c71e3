/* Runs a fuzz target over the files of a directory: the committed corpus is a regression test in every build. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    DIR *d = opendir(argv[1]);
    if (!d) {
        fprintf(stderr, "cannot open the corpus directory %s\n", argv[1]);
        return 1;
    }
    text path = {0}, bytes = {0};
    int files = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        error err = {0};
        path_join(&path, argv[1], e->d_name);
        if (e->d_name[0] == '.' || !file_read(path.data, 1 << 24, &bytes, &err))
            continue;
        LLVMFuzzerTestOneInput((const uint8_t *)bytes.data, bytes.length);
        files++;
    }
    closedir(d);
    text_free(&path);
    text_free(&bytes);
    printf("%d inputs replayed\n", files);
    return files > 0 ? 0 : 1;
}
