/* Values of Python for the translated checks: immutable but for new lists and dictionaries, in an arena or static. */
#ifndef OO_VALUES_H
#define OO_VALUES_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

#include "checks.h"

typedef enum {
    OO_NONE,
    OO_BOOL,
    OO_INT,
    OO_MEMBER, /* of an enumeration of integers */
    OO_FLOAT,
    OO_STR,
    OO_TUPLE,
    OO_LIST,
    OO_SET,
    OO_DICT,
    OO_RECORD,
    OO_FUNCTION,
    OO_OPAQUE, /* only compared for identity */
    OO_ARRAY,
    OO_NATIVE, /* the number of a native function, in place of its address */
} oo_kind;

typedef struct oo_object oo_object;
typedef const oo_object *oo_value;
typedef struct oo_state oo_state;
typedef oo_value oo_code(oo_state *s, const oo_value *arguments);
typedef __int128 oo_integer;

struct oo_object {
    int16_t kind;
    int16_t type;  /* class of a record or member */
    int64_t count; /* of items (pairs of a dictionary), or of bytes of a string */
    union {
        oo_integer integer;
        double number;
        const char *text;
        const oo_value *items; /* of a dictionary: key, value, key, value, ... */
        oo_code *code;
        const oo_tensor *array; /* of known sizes */
        struct {
            int64_t value;
            const char *name;
        } member;
    } as;
};

/* A class: its fields and properties by name, and the members of an enumeration. */
typedef struct {
    int is_tuple;
    int fields;
    const int16_t *field;
    int members;
    const oo_value *member;
    int properties;
    const int16_t *property;
    oo_code *const *code;
} oo_class;

extern const oo_class oo_classes[];

/* Names of attributes that the runtime knows; those of the translated code follow. */
enum {
    OO_NAME_name,
    OO_NAME_value,
    OO_NAME_shape,
    OO_NAME_ndim,
    OO_NAME_dtype,
    OO_NAME_size,
    OO_NAME_attributes,
    OO_NAMES,
};

/* A field of a record: kind i int64, d double, f float, I and F addresses of lists of int64 and float. */
typedef struct {
    oo_value name;
    char kind;
    int16_t offset;
    int16_t count; /* of elements; of I and F: the offset of the field with the number of elements */
} oo_field;

typedef struct {
    int64_t bytes;
    int fields;
    const oo_field *field;
} oo_layout;

/* An op: its record, how many inputs and outputs it has, and the layout of its attributes, which tells their kinds. */
typedef struct {
    oo_value self;
    int inputs, outputs;
    oo_layout attributes;
} oo_op;

/* A native function with a signature, and its number among those that the translation was given. */
typedef struct {
    oo_value function, signature;
    int64_t number;
} oo_pair;

/* What is translated: the ops, the class TensorType, layouts of records, and functions that native/checks.c calls. */
typedef struct {
    const oo_op *op;
    int tensor_type;
    oo_layout kernel, loop;
    int natives;
    const oo_pair *native;
    oo_code *call, *infer, *check_arrays, *fields, *text;
} oo_program;

extern const oo_program oo_translated;

struct oo_state {
    oo_arena *arena;
    jmp_buf jump;
    oo_value error;      /* an OpError */
    const char *problem; /* or another exception */
};

extern const oo_object oo_none[1], oo_false[1], oo_true[1];

void *oo_allocate(oo_state *s, size_t bytes);
_Noreturn void oo_stop(oo_state *s, const char *problem);
#define oo_fail(s, problem) oo_stop(s, "onnx_ops: " problem) /* another exception than OpError */
_Noreturn void oo_raise(oo_state *s, oo_value error);

/* Conversion to and from C. */
oo_value oo_bool(int truth);
oo_value oo_int(oo_state *s, oo_integer value);
oo_value oo_float(oo_state *s, double value);
oo_value oo_str(oo_state *s, const char *text);
oo_value oo_text(oo_state *s, const char *bytes, size_t count); /* UTF-8 */
oo_value oo_array(oo_state *s, const oo_tensor *tensor);
oo_value oo_new(oo_state *s, oo_kind kind, int type, int64_t count, const oo_value *items);
oo_integer oo_integer_of(oo_state *s, oo_value x);
int64_t oo_word_of(oo_state *s, oo_value x);
double oo_number_of(oo_state *s, oo_value x);
double oo_real(oo_state *s, oo_value x); /* a number to compute with */

/* Operations of the language. */
int oo_is_true(oo_state *s, oo_value x);
int oo_is(oo_value a, oo_value b);
int oo_equal(oo_state *s, oo_value a, oo_value b);
int oo_less(oo_state *s, oo_value a, oo_value b);
int oo_at_most(oo_state *s, oo_value a, oo_value b);
int oo_isinstance(oo_value x, oo_kind kind);
oo_value oo_member(oo_state *s, int type, oo_value value);
oo_value oo_native(oo_state *s, oo_value function, oo_value signature);
oo_value oo_called(oo_state *s, oo_value function, const oo_value *arguments);
int oo_in(oo_state *s, oo_value x, oo_value container);
int64_t oo_place_of(oo_state *s, oo_value x, oo_value container); /* -1 if it is not in it */
oo_value oo_add(oo_state *s, oo_value a, oo_value b);
oo_value oo_subtract(oo_state *s, oo_value a, oo_value b);
oo_value oo_multiply(oo_state *s, oo_value a, oo_value b);
oo_value oo_floor_divide(oo_state *s, oo_value a, oo_value b);
oo_value oo_modulo(oo_state *s, oo_value a, oo_value b);
oo_value oo_and(oo_state *s, oo_value a, oo_value b);
oo_value oo_or(oo_state *s, oo_value a, oo_value b);
oo_value oo_add_to(oo_state *s, oo_value a, oo_value b); /* += */
oo_value oo_or_to(oo_state *s, oo_value a, oo_value b);  /* |= */
oo_value oo_negative(oo_state *s, oo_value a);
oo_value oo_attribute_of(oo_state *s, oo_value x, int name);
oo_value oo_item(oo_state *s, oo_value x, oo_value key);
oo_value oo_slice(oo_state *s, oo_value x, oo_value begin, oo_value end);
void oo_set_item(oo_state *s, oo_value x, oo_value key, oo_value value);
void oo_append(oo_state *s, oo_value list, oo_value x);
void oo_extend(oo_state *s, oo_value list, oo_value iterable);
void oo_put(oo_state *s, oo_value set, oo_value x);
void oo_merge(oo_state *s, oo_value dict, oo_value other);
oo_value oo_items_of(oo_state *s, oo_value iterable); /* something with `items` and `count` */
void oo_unpack(oo_state *s, oo_value iterable, int count, int star, oo_value *targets);
oo_value oo_joined(oo_state *s, int count, const oo_value *pieces);
oo_value oo_replaced(oo_state *s, oo_value record, int name, oo_value value);

/* Arrays. Operations on elements: < > - * |, l for <=, g for >=, ? for a choice by the first operand. */
enum { OO_MAX_RANK = 16 };
int64_t oo_size_of(const oo_tensor *array);
oo_value oo_item_of_array(oo_state *s, oo_value x, oo_value key);
oo_value oo_slice_of_array(oo_state *s, oo_value x, int64_t first, int64_t last);
oo_value oo_elementwise(oo_state *s, char operation, int count, const oo_value *values);
oo_value oo_compared(oo_state *s, char operation, oo_value a, oo_value b);
int64_t oo_next_place(oo_state *s, oo_value mask, int64_t from); /* of a true element, in order; -1: no more */
oo_value oo_place_at(oo_state *s, oo_value mask, int64_t number);

/* Builtins and methods: a function of the array of arguments each. */
oo_code oo_len, oo_tuple, oo_list_of, oo_set_of, oo_dict_of, oo_sum, oo_to_str, oo_repr, oo_to_int, oo_to_float, oo_to_bool;
oo_code oo_prod, oo_zip, oo_zip_strict, oo_enumerate, oo_range, oo_sorted, oo_float32, oo_maximum, oo_floor, oo_same;
oo_code oo_min_of, oo_max_of, oo_arange, oo_where;
oo_code oo_items, oo_keys, oo_values_of, oo_get, oo_pop, oo_join, oo_index, oo_append_to, oo_to_list, oo_only, oo_reshape, oo_remove_prefix, oo_remove_suffix;

#endif
