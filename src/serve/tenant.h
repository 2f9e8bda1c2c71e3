/* Who may use the server: API keys, and limits per tenant.
 *
 * The key file has one tenant per line: NAME KEY [admin] [in-flight=N] [per-minute=N]; # begins a comment. The same name may
 * have several keys; its lines must then say the same. Without a file there is one tenant, "", without limits and with all rights.
 * Keys are kept as their SHA-256 alone. */
#ifndef SERVE_TENANT_H
#define SERVE_TENANT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct tenant {
    char name[64];   /* "" without a key file; part of the prefix cache's namespace */
    bool admin;      /* may flush, abort others' requests, read /server_info */
    int in_flight_most, per_minute_most; /* choices of requests; 0: no limit */
    int in_flight;   /* generations running now */
    double tokens;   /* of the rate bucket, which holds per_minute_most */
    uint64_t filled_us; /* when the bucket was last filled; 0: never, it is full */
} tenant;

typedef struct tenants tenants;

tenants *tenants_load(const char *path, error *err); /* path NULL: no keys */
void tenants_free(tenants *t);
bool tenants_have_keys(const tenants *t);

/* The tenant of an Authorization header ("Bearer KEY") or an x-api-key header, NULL when neither is right; without a key file
 * the one tenant. Every key is compared in constant time. */
tenant *tenants_find(tenants *t, const char *authorization, const char *x_api_key);

/* Takes `count` places (choices of a request); false when a limit is reached: *retry_after_s says when to come back. */
bool tenant_enter(tenant *who, int count, uint64_t now_us, int *retry_after_s, error *err);
void tenant_leave(tenant *who, int count);

#endif
