/* Values of Python: their making, comparison, arithmetic and containers. */
#include "values.h"

#include <math.h>
#include <string.h>

const oo_object oo_none[1] = {{.kind = OO_NONE}};
const oo_object oo_false[1] = {{.kind = OO_BOOL, .as.integer = 0}};
const oo_object oo_true[1] = {{.kind = OO_BOOL, .as.integer = 1}};

enum { CONSTANT, CHANGEABLE }; /* `type` of lists, sets and dictionaries */
enum { IN_DOUBLE, IN_SINGLE }; /* `type` of floats: those of NumPy in float32 are neither shown nor computed with */

static oo_object *made(oo_state *s, oo_kind kind, int type, int64_t count) {
    oo_object *x = oo_allocate(s, sizeof *x);
    *x = (oo_object){.kind = (int16_t)kind, .type = (int16_t)type, .count = count};
    return x;
}

oo_value oo_bool(int truth) { return truth ? oo_true : oo_false; }

oo_value oo_int(oo_state *s, oo_integer value) {
    oo_object *x = made(s, OO_INT, 0, 0);
    x->as.integer = value;
    return x;
}

oo_value oo_float(oo_state *s, double value) {
    oo_object *x = made(s, OO_FLOAT, 0, 0);
    x->as.number = value;
    return x;
}

/* Of memory of the arena, which ends with a 0. */
static oo_value string(oo_state *s, const char *own, size_t count) {
    oo_object *x = made(s, OO_STR, 0, (int64_t)count);
    x->as.text = own;
    return x;
}

oo_value oo_text(oo_state *s, const char *bytes, size_t count) {
    char *own = oo_allocate(s, count + 1);
    memcpy(own, bytes, count);
    own[count] = 0;
    return string(s, own, count);
}

oo_value oo_str(oo_state *s, const char *bytes) { return oo_text(s, bytes, strlen(bytes)); }

oo_value oo_joined(oo_state *s, int count, const oo_value *pieces) {
    size_t size = 0;
    for (int i = 0; i < count; i++) {
        if (pieces[i]->kind != OO_STR) oo_fail(s, "TypeError: expected str");
        size += (size_t)pieces[i]->count;
    }
    char *own = oo_allocate(s, size + 1), *at = own;
    for (int i = 0; i < count; i++) {
        memcpy(at, pieces[i]->as.text, (size_t)pieces[i]->count);
        at += pieces[i]->count;
    }
    *at = 0;
    return string(s, own, size);
}

oo_value oo_array(oo_state *s, const oo_tensor *tensor) {
    oo_object *x = made(s, OO_ARRAY, 0, 0);
    x->as.array = tensor;
    return x;
}

static int changes(oo_kind kind) { return kind == OO_LIST || kind == OO_SET || kind == OO_DICT; }

/* A value with room for its items; what may grow has room for a power of 2 of them, see `grown`. */
static oo_object *with_items(oo_state *s, oo_kind kind, int type, int64_t count, oo_value **items) {
    oo_object *x = made(s, kind, changes(kind) ? CHANGEABLE : type, count);
    size_t room = (size_t)count;
    if (changes(kind))
        for (room = 1; room < (size_t)count;) room *= 2;
    *items = oo_allocate(s, room * (kind == OO_DICT ? 2 : 1) * sizeof **items);
    x->as.items = *items;
    return x;
}

oo_value oo_new(oo_state *s, oo_kind kind, int type, int64_t count, const oo_value *items) {
    oo_value *own;
    oo_value x = with_items(s, kind, type, count, &own);
    if (count) memcpy(own, items, (size_t)count * (kind == OO_DICT ? 2 : 1) * sizeof *own);
    return x;
}

static int is_integer(oo_value x) { return x->kind == OO_INT || x->kind == OO_BOOL || x->kind == OO_MEMBER; }

oo_integer oo_integer_of(oo_state *s, oo_value x) {
    if (!is_integer(x)) oo_fail(s, "TypeError: expected an int");
    return x->kind == OO_MEMBER ? x->as.member.value : x->as.integer;
}

int64_t oo_word_of(oo_state *s, oo_value x) {
    oo_integer value = oo_integer_of(s, x);
    if (value < INT64_MIN || value > INT64_MAX) oo_fail(s, "OverflowError: int too large");
    return (int64_t)value;
}

double oo_number_of(oo_state *s, oo_value x) {
    return x->kind == OO_FLOAT ? x->as.number : (double)oo_integer_of(s, x);
}

oo_value oo_float32(oo_state *s, const oo_value *a) {
    oo_object *x = made(s, OO_FLOAT, IN_SINGLE, 0);
    x->as.number = (float)oo_number_of(s, a[0]);
    return x;
}

double oo_real(oo_state *s, oo_value x) {
    if (x->kind == OO_FLOAT && x->type == IN_SINGLE) oo_fail(s, "NotImplementedError: arithmetic in float32");
    return oo_number_of(s, x);
}

static int has_items(oo_value x) {
    return x->kind == OO_TUPLE || x->kind == OO_LIST || x->kind == OO_SET
           || (x->kind == OO_RECORD && oo_classes[x->type].is_tuple);
}

static int is_number(oo_value x) { return x->kind == OO_FLOAT || is_integer(x); }

int oo_is_true(oo_state *s, oo_value x) {
    switch (x->kind) {
    case OO_NONE: return 0;
    case OO_FLOAT: return x->as.number != 0;
    case OO_STR: case OO_TUPLE: case OO_LIST: case OO_SET: case OO_DICT: return x->count != 0;
    case OO_RECORD: return oo_classes[x->type].is_tuple ? x->count != 0 : 1;
    case OO_FUNCTION: case OO_OPAQUE: case OO_NATIVE: return 1;
    case OO_ARRAY: oo_fail(s, "ValueError: the truth value of an array is ambiguous");
    default: return oo_integer_of(s, x) != 0;
    }
}

int oo_is(oo_value a, oo_value b) {
    if (a->kind == OO_BOOL && b->kind == OO_BOOL) return a->as.integer == b->as.integer;
    if (a->kind == OO_MEMBER && b->kind == OO_MEMBER) return a->type == b->type && a->as.member.value == b->as.member.value;
    return a == b || (a->kind == OO_NONE && b->kind == OO_NONE);
}

/* -1, 0 or 1; 2 if one is NaN. Exact, as in Python. */
static int order(oo_state *s, oo_value a, oo_value b) {
    if (a->kind == OO_FLOAT && b->kind == OO_FLOAT) {
        double x = a->as.number, y = b->as.number;
        return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
    }
    if (b->kind == OO_FLOAT) {
        int other = order(s, b, a);
        return other == 2 ? 2 : -other;
    }
    oo_integer y = oo_integer_of(s, b);
    if (a->kind != OO_FLOAT) {
        oo_integer x = oo_integer_of(s, a);
        return (x > y) - (x < y);
    }
    double x = a->as.number;
    if (isnan(x)) return 2;
    if (x >= 0x1p126) return 1; /* larger integers are refused */
    if (x <= -0x1p126) return -1;
    oo_integer whole = (oo_integer)floor(x);
    return whole != y ? (whole > y) - (whole < y) : x > floor(x);
}

int oo_equal(oo_state *s, oo_value a, oo_value b) {
    if (a == b && a->kind != OO_FLOAT) return 1;
    if (is_number(a) && is_number(b)) return order(s, a, b) == 0;
    int are_tuples = oo_isinstance(a, OO_TUPLE) && oo_isinstance(b, OO_TUPLE);
    if (a->kind != b->kind && !are_tuples) return 0;
    switch (a->kind) {
    case OO_NONE: return 1;
    case OO_STR: return a->count == b->count && memcmp(a->as.text, b->as.text, (size_t)a->count) == 0;
    case OO_FUNCTION: case OO_OPAQUE: return 0;
    case OO_RECORD:
        if (a->type != b->type && !are_tuples) return 0;
        break;
    case OO_TUPLE: case OO_LIST: break;
    default: oo_fail(s, "TypeError: not compared");
    }
    if (a->count != b->count) return 0;
    for (int64_t i = 0; i < a->count; i++)
        if (!oo_equal(s, a->as.items[i], b->as.items[i])) return 0;
    return 1;
}

int oo_less(oo_state *s, oo_value a, oo_value b) {
    if (a->kind == OO_STR && b->kind == OO_STR) return strcmp(a->as.text, b->as.text) < 0;
    if (!is_number(a) || !is_number(b)) oo_fail(s, "TypeError: not ordered");
    return order(s, a, b) == -1;
}

int oo_at_most(oo_state *s, oo_value a, oo_value b) {
    if (!is_number(a) || !is_number(b)) oo_fail(s, "TypeError: not ordered");
    int found = order(s, a, b);
    return found == -1 || found == 0;
}

/* kind: OO_INT for all integers, OO_TUPLE for named tuples too. */
int oo_isinstance(oo_value x, oo_kind kind) {
    if (kind == OO_INT) return is_integer(x);
    return x->kind == (int16_t)kind || (kind == OO_TUPLE && x->kind == OO_RECORD && oo_classes[x->type].is_tuple);
}

oo_value oo_member(oo_state *s, int type, oo_value value) {
    const oo_class *own = &oo_classes[type];
    for (int i = 0; i < own->members; i++)
        if (oo_equal(s, own->member[i], value)) return own->member[i];
    oo_fail(s, "ValueError: no such member of an enumeration");
}

oo_value oo_native(oo_state *s, oo_value function, oo_value signature) {
    for (int i = 0; i < oo_translated.natives; i++) {
        const oo_pair *own = &oo_translated.native[i];
        if (own->function == function && own->signature == signature) {
            oo_object *x = made(s, OO_NATIVE, 0, 0);
            x->as.integer = own->number;
            return x;
        }
    }
    oo_fail(s, "KeyError: a native function is missing");
}

oo_value oo_called(oo_state *s, oo_value function, const oo_value *arguments) {
    if (function->kind != OO_FUNCTION || function->as.code == NULL) oo_fail(s, "TypeError: not callable");
    return function->as.code(s, arguments);
}

int64_t oo_place_of(oo_state *s, oo_value x, oo_value container) {
    int step = container->kind == OO_DICT ? 2 : 1;
    for (int64_t i = 0; i < container->count; i++)
        if (oo_equal(s, x, container->as.items[i * step])) return i;
    return -1;
}

int oo_in(oo_state *s, oo_value x, oo_value container) {
    if (container->kind == OO_STR && x->kind == OO_STR) return strstr(container->as.text, x->as.text) != NULL;
    if (!has_items(container) && container->kind != OO_DICT) oo_fail(s, "TypeError: not a container");
    return oo_place_of(s, x, container) >= 0;
}

/* --- arithmetic ------------------------------------------------------------------------------------------------- */

static oo_value chained(oo_state *s, oo_value a, oo_value b) {
    oo_value *items;
    oo_value x = with_items(s, (oo_kind)a->kind, 0, a->count + b->count, &items);
    for (int64_t i = 0; i < a->count; i++) items[i] = a->as.items[i];
    for (int64_t i = 0; i < b->count; i++) items[a->count + i] = b->as.items[i];
    return x;
}

static oo_value whole(oo_state *s, int wraps, oo_integer value) {
    if (wraps) oo_fail(s, "OverflowError: int too large");
    return oo_int(s, value);
}

oo_value oo_add(oo_state *s, oo_value a, oo_value b) {
    if ((a->kind == OO_TUPLE || a->kind == OO_LIST) && b->kind == a->kind) return chained(s, a, b);
    if (a->kind == OO_STR && b->kind == OO_STR) return oo_joined(s, 2, (oo_value[]){a, b});
    if (a->kind == OO_FLOAT || b->kind == OO_FLOAT) return oo_float(s, oo_real(s, a) + oo_real(s, b));
    oo_integer out, x = oo_integer_of(s, a), y = oo_integer_of(s, b);
    int wraps = __builtin_add_overflow(x, y, &out);
    return whole(s, wraps, out);
}

static int has_arrays(oo_value a, oo_value b) { return a->kind == OO_ARRAY || b->kind == OO_ARRAY; }

oo_value oo_subtract(oo_state *s, oo_value a, oo_value b) {
    if (has_arrays(a, b)) return oo_elementwise(s, '-', 2, (oo_value[]){a, b});
    if (a->kind == OO_FLOAT || b->kind == OO_FLOAT) return oo_float(s, oo_real(s, a) - oo_real(s, b));
    oo_integer out, x = oo_integer_of(s, a), y = oo_integer_of(s, b);
    int wraps = __builtin_sub_overflow(x, y, &out);
    return whole(s, wraps, out);
}

oo_value oo_multiply(oo_state *s, oo_value a, oo_value b) {
    if (has_arrays(a, b)) return oo_elementwise(s, '*', 2, (oo_value[]){a, b});
    if (is_integer(a) && (b->kind == OO_TUPLE || b->kind == OO_LIST)) return oo_multiply(s, b, a);
    if (a->kind == OO_TUPLE || a->kind == OO_LIST) {
        oo_value out = oo_new(s, (oo_kind)a->kind, 0, 0, NULL);
        for (int64_t n = oo_word_of(s, b); n > 0; n--) out = chained(s, out, a);
        return out;
    }
    if (a->kind == OO_FLOAT || b->kind == OO_FLOAT) return oo_float(s, oo_real(s, a) * oo_real(s, b));
    oo_integer out, x = oo_integer_of(s, a), y = oo_integer_of(s, b);
    int wraps = __builtin_mul_overflow(x, y, &out);
    return whole(s, wraps, out);
}

oo_value oo_floor_divide(oo_state *s, oo_value a, oo_value b) {
    oo_integer x = oo_integer_of(s, a), y = oo_integer_of(s, b);
    if (y == 0) oo_fail(s, "ZeroDivisionError: integer division or modulo by zero");
    if (y == -1) return oo_negative(s, a);
    return oo_int(s, x / y - (x % y != 0 && (x < 0) != (y < 0)));
}

oo_value oo_modulo(oo_state *s, oo_value a, oo_value b) {
    oo_integer x = oo_integer_of(s, a), y = oo_integer_of(s, b);
    if (y == 0) oo_fail(s, "ZeroDivisionError: integer division or modulo by zero");
    oo_integer rest = y == -1 ? 0 : x % y;
    return oo_int(s, rest + (rest != 0 && (rest < 0) != (y < 0) ? y : 0));
}

oo_value oo_and(oo_state *s, oo_value a, oo_value b) {
    oo_integer both = oo_integer_of(s, a) & oo_integer_of(s, b);
    return a->kind == OO_BOOL && b->kind == OO_BOOL ? oo_bool(both != 0) : oo_int(s, both);
}

oo_value oo_or(oo_state *s, oo_value a, oo_value b) {
    if (has_arrays(a, b)) return oo_elementwise(s, '|', 2, (oo_value[]){a, b});
    if (a->kind == OO_DICT && b->kind == OO_DICT) {
        oo_value out = oo_new(s, OO_DICT, 0, a->count, a->as.items);
        oo_merge(s, out, b);
        return out;
    }
    oo_integer either = oo_integer_of(s, a) | oo_integer_of(s, b);
    return a->kind == OO_BOOL && b->kind == OO_BOOL ? oo_bool(either != 0) : oo_int(s, either);
}

oo_value oo_add_to(oo_state *s, oo_value a, oo_value b) {
    if (a->kind != OO_LIST) return oo_add(s, a, b);
    oo_extend(s, a, b);
    return a;
}

oo_value oo_or_to(oo_state *s, oo_value a, oo_value b) {
    if (a->kind != OO_DICT) return oo_or(s, a, b);
    oo_merge(s, a, b);
    return a;
}

oo_value oo_negative(oo_state *s, oo_value a) {
    if (a->kind == OO_FLOAT) return oo_float(s, -oo_real(s, a));
    oo_integer out, x = oo_integer_of(s, a);
    int wraps = __builtin_sub_overflow((oo_integer)0, x, &out);
    return whole(s, wraps, out);
}

/* --- containers ------------------------------------------------------------------------------------------------- */

static oo_value tuple_of_sizes(oo_state *s, const oo_tensor *array) {
    oo_value *items;
    oo_value x = with_items(s, OO_TUPLE, 0, array->rank, &items);
    for (int64_t i = 0; i < array->rank; i++) items[i] = oo_int(s, array->dims[i].size);
    return x;
}

oo_value oo_attribute_of(oo_state *s, oo_value x, int name) {
    if (x->kind == OO_ARRAY) {
        switch (name) {
        case OO_NAME_shape: return tuple_of_sizes(s, x->as.array);
        case OO_NAME_ndim: return oo_int(s, x->as.array->rank);
        case OO_NAME_dtype: return oo_int(s, x->as.array->dtype);
        case OO_NAME_size: return oo_int(s, oo_size_of(x->as.array));
        }
    }
    if (x->kind == OO_MEMBER && name == OO_NAME_value) return oo_int(s, x->as.member.value);
    if (x->kind == OO_MEMBER && name == OO_NAME_name) return oo_str(s, x->as.member.name);
    if (x->kind == OO_RECORD || x->kind == OO_MEMBER) {
        const oo_class *own = &oo_classes[x->type];
        if (x->kind == OO_RECORD)
            for (int i = 0; i < own->fields; i++)
                if (own->field[i] == name && x->as.items[i] != NULL) return x->as.items[i];
        for (int i = 0; i < own->properties; i++)
            if (own->property[i] == name) return own->code[i](s, &x);
    }
    oo_fail(s, "AttributeError: no such attribute");
}

oo_value oo_replaced(oo_state *s, oo_value record, int name, oo_value value) {
    if (record->kind == OO_RECORD) {
        const oo_class *own = &oo_classes[record->type];
        for (int i = 0; i < own->fields; i++)
            if (own->field[i] == name) {
                oo_value *items;
                oo_value x = with_items(s, OO_RECORD, record->type, record->count, &items);
                memcpy(items, record->as.items, (size_t)record->count * sizeof *items);
                items[i] = value;
                return x;
            }
    }
    oo_fail(s, "TypeError: no such field");
}

oo_value oo_items_of(oo_state *s, oo_value x) {
    if (has_items(x)) return x;
    if (x->kind == OO_DICT) return oo_keys(s, &x);
    if (x->kind != OO_STR) oo_fail(s, "TypeError: not iterable");
    oo_value out = oo_new(s, OO_LIST, 0, 0, NULL);
    for (int64_t i = 0; i < x->count;) {
        int64_t begin = i++;
        while ((x->as.text[i] & 0xC0) == 0x80) i++; /* the other bytes of a character in UTF-8 */
        oo_append(s, out, oo_text(s, x->as.text + begin, (size_t)(i - begin)));
    }
    return out;
}

static int64_t index_of(oo_state *s, oo_value key, int64_t count) {
    oo_integer i = oo_integer_of(s, key);
    if (i < 0) i += count;
    if (i < 0 || i >= count) oo_fail(s, "IndexError: index out of range");
    return (int64_t)i;
}

oo_value oo_item(oo_state *s, oo_value x, oo_value key) {
    if (x->kind == OO_ARRAY) return oo_item_of_array(s, x, key);
    if (has_items(x) && x->kind != OO_SET) return x->as.items[index_of(s, key, x->count)];
    if (x->kind != OO_DICT) oo_fail(s, "TypeError: not subscriptable");
    int64_t place = oo_place_of(s, key, x);
    if (place < 0) oo_fail(s, "KeyError: no such key");
    return x->as.items[2 * place + 1];
}

static int64_t bound(oo_state *s, oo_value x, int64_t count, int64_t missing) {
    if (x->kind == OO_NONE) return missing;
    oo_integer i = oo_integer_of(s, x);
    if (i < 0) i += count;
    return (int64_t)(i < 0 ? 0 : i > count ? count : i);
}

oo_value oo_slice(oo_state *s, oo_value x, oo_value begin, oo_value end) {
    int is_array = x->kind == OO_ARRAY && x->as.array->rank > 0;
    if (!is_array && x->kind != OO_TUPLE && x->kind != OO_LIST) oo_fail(s, "TypeError: not sliced");
    int64_t count = is_array ? x->as.array->dims[0].size : x->count;
    int64_t first = bound(s, begin, count, 0), last = bound(s, end, count, count);
    if (is_array) return oo_slice_of_array(s, x, first, last);
    return oo_new(s, (oo_kind)x->kind, 0, last > first ? last - first : 0, x->as.items + first);
}

/* Lists, sets and dictionaries grow to twice their size whenever this is a power of 2. */
static oo_value *grown(oo_state *s, oo_value x, int per) {
    if (x->type != CHANGEABLE) oo_fail(s, "TypeError: a constant cannot be changed");
    int64_t count = x->count;
    oo_object *own = (oo_object *)x;
    if ((count & (count - 1)) == 0 || count == 0) {
        oo_value *items = oo_allocate(s, (size_t)(count ? 2 * count : 1) * (size_t)per * sizeof *items);
        if (count) memcpy(items, x->as.items, (size_t)count * (size_t)per * sizeof *items);
        own->as.items = items;
    }
    own->count++;
    return (oo_value *)own->as.items + count * per;
}

void oo_append(oo_state *s, oo_value list, oo_value x) {
    if (list->kind != OO_LIST) oo_fail(s, "TypeError: not a list");
    *grown(s, list, 1) = x;
}

void oo_extend(oo_state *s, oo_value list, oo_value iterable) {
    oo_value from = oo_items_of(s, iterable);
    int64_t count = from->count;
    for (int64_t i = 0; i < count; i++) oo_append(s, list, from->as.items[i]);
}

void oo_put(oo_state *s, oo_value set, oo_value x) {
    if (oo_place_of(s, x, set) < 0) *grown(s, set, 1) = x;
}

void oo_set_item(oo_state *s, oo_value x, oo_value key, oo_value value) {
    if (x->type != CHANGEABLE || (x->kind != OO_DICT && x->kind != OO_LIST)) oo_fail(s, "TypeError: not assignable");
    oo_value *items = (oo_value *)x->as.items;
    if (x->kind == OO_LIST) {
        items[index_of(s, key, x->count)] = value;
        return;
    }
    int64_t place = oo_place_of(s, key, x);
    if (place >= 0) {
        items[2 * place + 1] = value;
        return;
    }
    oo_value *pair = grown(s, x, 2);
    pair[0] = key;
    pair[1] = value;
}

void oo_merge(oo_state *s, oo_value dict, oo_value other) {
    if (other->kind != OO_DICT) oo_fail(s, "TypeError: not a dictionary");
    for (int64_t i = 0; i < other->count; i++) oo_set_item(s, dict, other->as.items[2 * i], other->as.items[2 * i + 1]);
}

void oo_unpack(oo_state *s, oo_value iterable, int count, int star, oo_value *targets) {
    oo_value from = oo_items_of(s, iterable);
    int64_t rest = from->count - (count - 1);
    if (star < 0 ? from->count != count : rest < 0) oo_fail(s, "ValueError: wrong number of values to unpack");
    for (int i = 0; i < count; i++)
        if (i == star) targets[i] = oo_new(s, OO_LIST, 0, rest, from->as.items + i);
        else targets[i] = from->as.items[star >= 0 && i > star ? i + rest - 1 : i];
}

/* The value of a key, or without one any element of a set; it is removed. */
oo_value oo_pop(oo_state *s, const oo_value *a) {
    oo_object *own = (oo_object *)a[0];
    if (own->type != CHANGEABLE || own->count == 0 || (own->kind == OO_DICT) == (a[1]->kind == OO_NONE))
        oo_fail(s, "TypeError: pop");
    if (own->kind == OO_SET) return own->as.items[--own->count];
    int64_t place = oo_place_of(s, a[1], own);
    if (place < 0) oo_fail(s, "KeyError: no such key");
    oo_value found = own->as.items[2 * place + 1];
    oo_value left = oo_new(s, OO_DICT, 0, 0, NULL);
    for (int64_t i = 0; i < own->count; i++)
        if (i != place) oo_set_item(s, left, own->as.items[2 * i], own->as.items[2 * i + 1]);
    *own = *left;
    return found;
}
