/* The table of all endpoints. Rows with the same path stand together. */
#include "serve/handlers.h"

const route server_routes[] = {
    /* page */
    {"GET", "/", ROUTE_OPEN, handle_page, false},
    {"GET", "/assets/*", ROUTE_OPEN, handle_page, false},
    {"GET", "/dashboard.json", ROUTE_KEY, handle_dashboard, false},
    /* OpenAI */
    {"POST", "/v1/chat/completions", ROUTE_KEY, handle_openai_chat, false},
    {"POST", "/v1/completions", ROUTE_KEY, handle_openai_completions, false},
    {"GET", "/v1/models", ROUTE_KEY, handle_models, false},
    {"GET", "/v1/models/*", ROUTE_KEY, handle_models, false},
    /* Anthropic */
    {"POST", "/v1/messages", ROUTE_KEY, handle_anthropic_messages, true},
    {"POST", "/v1/messages/count_tokens", ROUTE_KEY, handle_anthropic_count, true},
    /* native */
    {"POST", "/generate", ROUTE_KEY, handle_generate, false},
    {"POST", "/tokenize", ROUTE_KEY, handle_tokenize, false},
    {"POST", "/v1/tokenize", ROUTE_KEY, handle_tokenize, false},
    {"POST", "/detokenize", ROUTE_KEY, handle_detokenize, false},
    {"POST", "/v1/detokenize", ROUTE_KEY, handle_detokenize, false},
    /* operation */
    {"GET", "/health", ROUTE_OPEN, handle_health, false},
    {"GET", "/healthz", ROUTE_OPEN, handle_health, false},
    {"GET", "/ping", ROUTE_OPEN, handle_health, false},
    {"GET", "/readyz", ROUTE_OPEN, handle_ready, false},
    {"GET", "/version", ROUTE_OPEN, handle_version, false},
    {"GET", "/metrics", ROUTE_KEY, handle_metrics, false},
    {"GET", "/server_info", ROUTE_ADMIN, handle_server_info, false},
    {"GET", "/get_server_info", ROUTE_ADMIN, handle_server_info, false},
    {"GET", "/model_info", ROUTE_ADMIN, handle_server_info, false},
    {"GET", "/get_model_info", ROUTE_ADMIN, handle_server_info, false},
    {"GET", "/v1/loads", ROUTE_KEY, handle_loads, false},
    {"GET", "/get_load", ROUTE_KEY, handle_loads, false},
    {"GET", "/flush_cache", ROUTE_ADMIN, handle_flush_cache, false},
    {"POST", "/flush_cache", ROUTE_ADMIN, handle_flush_cache, false},
    {"POST", "/reset_prefix_cache", ROUTE_ADMIN, handle_flush_cache, false},
    {"POST", "/abort_request", ROUTE_KEY, handle_abort_request, false},
    {NULL, NULL, ROUTE_OPEN, NULL, false},
};
