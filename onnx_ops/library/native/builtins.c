/* Builtin functions, and methods of values. */
#include <math.h>
#include <string.h>

#include "values.h"

oo_value oo_same(oo_state *s, const oo_value *a) {
    (void)s;
    return a[0];
}

oo_value oo_len(oo_state *s, const oo_value *a) {
    if (a[0]->kind == OO_DICT) return oo_int(s, a[0]->count);
    if (a[0]->kind == OO_ARRAY && a[0]->as.array->rank) return oo_int(s, a[0]->as.array->dims[0].size);
    return oo_int(s, oo_items_of(s, a[0])->count);
}

oo_value oo_tuple(oo_state *s, const oo_value *a) {
    oo_value from = oo_items_of(s, a[0]);
    return oo_new(s, OO_TUPLE, 0, from->count, from->as.items);
}

oo_value oo_list_of(oo_state *s, const oo_value *a) {
    oo_value from = oo_items_of(s, a[0]);
    return oo_new(s, OO_LIST, 0, from->count, from->as.items);
}

oo_value oo_set_of(oo_state *s, const oo_value *a) {
    oo_value from = oo_items_of(s, a[0]), out = oo_new(s, OO_SET, 0, 0, NULL);
    for (int64_t i = 0; i < from->count; i++) oo_put(s, out, from->as.items[i]);
    return out;
}

oo_value oo_dict_of(oo_state *s, const oo_value *a) {
    if (a[0]->kind == OO_DICT) return oo_new(s, OO_DICT, 0, a[0]->count, a[0]->as.items);
    oo_value from = oo_items_of(s, a[0]), out = oo_new(s, OO_DICT, 0, 0, NULL);
    for (int64_t i = 0; i < from->count; i++) {
        oo_value pair[2];
        oo_unpack(s, from->as.items[i], 2, -1, pair);
        oo_set_item(s, out, pair[0], pair[1]);
    }
    return out;
}

oo_value oo_sum(oo_state *s, const oo_value *a) {
    oo_value from = oo_items_of(s, a[0]), out = oo_int(s, 0);
    for (int64_t i = 0; i < from->count; i++) /* newer versions of Python add floats with a correction */
        out = oo_int(s, oo_integer_of(s, oo_add(s, out, from->as.items[i])));
    return out;
}

oo_value oo_prod(oo_state *s, const oo_value *a) {
    oo_value from = oo_items_of(s, a[0]), out = oo_int(s, 1);
    for (int64_t i = 0; i < from->count; i++) out = oo_multiply(s, out, from->as.items[i]);
    return out;
}

static oo_value extreme(oo_state *s, oo_value from, int greatest) {
    if (from->count == 0) oo_fail(s, "ValueError: no values");
    oo_value out = from->as.items[0];
    for (int64_t i = 1; i < from->count; i++) {
        oo_value x = from->as.items[i];
        if (greatest ? oo_less(s, out, x) : oo_less(s, x, out)) out = x;
    }
    return out;
}

oo_value oo_min_of(oo_state *s, const oo_value *a) { return extreme(s, oo_items_of(s, a[0]), 0); }

oo_value oo_max_of(oo_state *s, const oo_value *a) { return extreme(s, oo_items_of(s, a[0]), 1); }

oo_value oo_to_int(oo_state *s, const oo_value *a) {
    if (a[0]->kind != OO_FLOAT) return oo_int(s, oo_integer_of(s, a[0]));
    double value = a[0]->as.number;
    if (!(fabs(value) < 0x1p126)) oo_fail(s, "OverflowError: int too large");
    return oo_int(s, (oo_integer)value);
}

oo_value oo_to_float(oo_state *s, const oo_value *a) { return oo_float(s, oo_number_of(s, a[0])); }

oo_value oo_to_bool(oo_state *s, const oo_value *a) { return oo_bool(oo_is_true(s, a[0])); }

/* `numpy.maximum` of two floats of one dtype. */
oo_value oo_maximum(oo_state *s, const oo_value *a) {
    if (a[0]->kind != OO_FLOAT || a[1]->kind != OO_FLOAT || a[0]->type != a[1]->type)
        oo_fail(s, "NotImplementedError: maximum of such values");
    double x = a[0]->as.number, y = a[1]->as.number;
    return isnan(x) || x > y ? a[0] : a[1];
}

oo_value oo_floor(oo_state *s, const oo_value *a) { return oo_float(s, floor(oo_real(s, a[0]))); }

/* a: a list of iterables. */
static oo_value zipped(oo_state *s, oo_value iterables, int strict) {
    int64_t width = iterables->count, count = 0;
    oo_value *from = oo_allocate(s, (size_t)width * sizeof *from);
    for (int64_t k = 0; k < width; k++) {
        from[k] = oo_items_of(s, iterables->as.items[k]);
        if (strict && k && from[k]->count != count) oo_fail(s, "ValueError: zip() arguments differ in length");
        if (k == 0 || from[k]->count < count) count = from[k]->count;
    }
    oo_value out = oo_new(s, OO_LIST, 0, 0, NULL);
    for (int64_t i = 0; i < count; i++) {
        oo_value *items = oo_allocate(s, (size_t)width * sizeof *items);
        for (int64_t k = 0; k < width; k++) items[k] = from[k]->as.items[i];
        oo_append(s, out, oo_new(s, OO_TUPLE, 0, width, items));
    }
    return out;
}

oo_value oo_zip(oo_state *s, const oo_value *a) { return zipped(s, a[0], 0); }

oo_value oo_zip_strict(oo_state *s, const oo_value *a) { return zipped(s, a[0], 1); }

oo_value oo_enumerate(oo_state *s, const oo_value *a) {
    oo_value from = oo_items_of(s, a[0]), out = oo_new(s, OO_LIST, 0, 0, NULL);
    oo_integer first = oo_integer_of(s, a[1]);
    for (int64_t i = 0; i < from->count; i++)
        oo_append(s, out, oo_new(s, OO_TUPLE, 0, 2, (oo_value[]){oo_int(s, first + i), from->as.items[i]}));
    return out;
}

oo_value oo_range(oo_state *s, const oo_value *a) {
    int64_t begin = oo_word_of(s, a[0]), end = oo_word_of(s, a[1]);
    oo_value out = oo_new(s, OO_LIST, 0, 0, NULL);
    for (int64_t i = begin; i < end; i++) oo_append(s, out, oo_int(s, i));
    return out;
}

oo_value oo_sorted(oo_state *s, const oo_value *a) {
    oo_value from = oo_items_of(s, a[0]), out = oo_new(s, OO_LIST, 0, from->count, from->as.items);
    oo_value *items = (oo_value *)out->as.items;
    for (int64_t i = 1; i < out->count; i++)
        for (int64_t k = i; k > 0 && oo_less(s, items[k], items[k - 1]); k--) {
            oo_value other = items[k];
            items[k] = items[k - 1];
            items[k - 1] = other;
        }
    return out;
}

static oo_value of_dict(oo_state *s, oo_value x, int first, int count) {
    if (x->kind != OO_DICT) oo_fail(s, "AttributeError: not a dictionary");
    oo_value out = oo_new(s, OO_LIST, 0, 0, NULL);
    for (int64_t i = 0; i < x->count; i++) {
        const oo_value *pair = x->as.items + 2 * i;
        oo_append(s, out, count == 2 ? oo_new(s, OO_TUPLE, 0, 2, pair) : pair[first]);
    }
    return out;
}

oo_value oo_items(oo_state *s, const oo_value *a) { return of_dict(s, a[0], 0, 2); }

oo_value oo_keys(oo_state *s, const oo_value *a) { return of_dict(s, a[0], 0, 1); }

oo_value oo_values_of(oo_state *s, const oo_value *a) { return of_dict(s, a[0], 1, 1); }

oo_value oo_get(oo_state *s, const oo_value *a) {
    if (a[0]->kind != OO_DICT) oo_fail(s, "AttributeError: not a dictionary");
    return oo_in(s, a[1], a[0]) ? oo_item(s, a[0], a[1]) : a[2];
}

oo_value oo_append_to(oo_state *s, const oo_value *a) {
    oo_append(s, a[0], a[1]);
    return oo_none;
}

oo_value oo_join(oo_state *s, const oo_value *a) {
    oo_value from = oo_items_of(s, a[1]);
    if (from->count == 0) return oo_str(s, "");
    oo_value *pieces = oo_allocate(s, (size_t)(2 * from->count) * sizeof *pieces);
    for (int64_t i = 0; i < from->count; i++) {
        pieces[2 * i] = from->as.items[i];
        pieces[2 * i + 1] = a[0];
    }
    return oo_joined(s, (int)(2 * from->count - 1), pieces);
}

oo_value oo_index(oo_state *s, const oo_value *a) {
    if (a[0]->kind != OO_LIST && a[0]->kind != OO_TUPLE) oo_fail(s, "AttributeError: not a list");
    int64_t place = oo_place_of(s, a[1], a[0]);
    if (place < 0) oo_fail(s, "ValueError: not in the list");
    return oo_int(s, place);
}

oo_value oo_remove_prefix(oo_state *s, const oo_value *a) {
    if (a[0]->kind != OO_STR || a[1]->kind != OO_STR) oo_fail(s, "TypeError: expected str");
    size_t size = (size_t)a[1]->count;
    return strncmp(a[0]->as.text, a[1]->as.text, size) ? a[0] : oo_str(s, a[0]->as.text + size);
}

oo_value oo_remove_suffix(oo_state *s, const oo_value *a) {
    if (a[0]->kind != OO_STR || a[1]->kind != OO_STR) oo_fail(s, "TypeError: expected str");
    int64_t left = a[0]->count - a[1]->count;
    if (left < 0 || strcmp(a[0]->as.text + left, a[1]->as.text)) return a[0];
    return oo_text(s, a[0]->as.text, (size_t)left);
}
