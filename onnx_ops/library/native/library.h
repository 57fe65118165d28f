/* What the generated tables of a library have. */
#ifndef OO_LIBRARY_H
#define OO_LIBRARY_H

#include "runtime.h"

/* An attribute; kind: i, f, I, F (lists); offset: of its value or address in the record of attributes; length: of the
   number of elements of a list. */
typedef struct {
    const char *name;
    char kind;
    int64_t offset, length;
} oo_attribute_info;

/* An op. */
typedef struct {
    const char *name;
    int64_t inputs, outputs, attributes;
    int optional_output[OO_OUTPUTS];
    int has_optional_inputs;
    const oo_attribute_info *attribute;
} oo_operator;

/* An op for one combination of dtypes. The native functions are numbers of functions, -1 for none. */
typedef struct {
    oo_custom_op native;
    int64_t op, may_inplace, release_may_inplace;
} oo_declaration;

/* A callback of all declarations. */
typedef struct {
    size_t offset; /* in oo_custom_op */
    int64_t function;
} oo_callback;

/* The functions as compiled for a kind of processor; needs: the least one that runs them, as in oo_runs. */
typedef struct {
    const char *name, *needs;
    void *const *functions;
} oo_level;

extern const oo_operator oo_operators[];
extern oo_declaration oo_declarations[];
extern const int64_t oo_declaration_count;
extern const oo_callback oo_callbacks[];
extern const int64_t oo_callback_count;
extern const oo_level oo_levels[]; /* the highest first */
extern const int64_t oo_level_count;

/* Whether this processor has the features of a level of the x86-64 psABI ("v2", "v3", "v4"); "" is any. */
int oo_runs(const char *level);
/* Size of the last-level cache, and number of available cores, as in `runtime.loops.compilation`. */
int64_t oo_cache_bytes(void);
int64_t oo_available_cores(void);

#endif
