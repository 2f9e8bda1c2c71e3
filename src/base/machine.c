#include "base/machine.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

uint64_t machine_free_bytes(void)
{
    text meminfo = {0};
    unsigned long long kilobytes = 0;
    if (file_read("/proc/meminfo", 1 << 16, &meminfo, NULL)) {
        const char *line = strstr(meminfo.data, "MemAvailable:");
        if (line)
            sscanf(line, "MemAvailable: %llu", &kilobytes);
    }
    text_free(&meminfo);
    return (uint64_t)kilobytes << 10;
}
