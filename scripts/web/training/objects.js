/** An object with the same keys and the values `change(value, key)`. */
export function mapped(object, change) {
  return Object.fromEntries(Object.entries(object).map(([name, value]) => [name, change(value, name)]));
}

/** The entries of an object whose keys are wanted. */
export function filtered(object, wanted) {
  return Object.fromEntries(Object.entries(object).filter(([name]) => wanted(name)));
}
