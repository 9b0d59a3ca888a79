// The compile bundle of a form (compile_bundle.py): the one whose values the compile controls have, else "Custom". The
// first control decides whether anything is compiled; while it is off, the others do not matter.
var CompileBundles = (() => {
  const custom = new Map(); // tab -> the values for which the user chose Custom, though they may be a bundle's
  const text = (value) =>
    String(value ?? "")
      .split("\n")
      .map((line) => line.trim())
      .filter(Boolean)
      .join("\n");
  const key = (values) => JSON.stringify(values.map(text));
  const update = (more) => ({ __type__: "update", ...more });

  /** The update of the list after a compile control changed; `now`: the values of all. */
  const shown = (tab, bundles, other, now) => {
    const held = key(now);
    const [none] = bundles;
    if (custom.get(tab) !== held) custom.delete(tab);
    const same = now[0] ? bundles.find(({ values }) => key(values) === held) : none;
    const { title, help } = (!custom.has(tab) && same) || other;
    return update({ value: title, info: help });
  };

  /** The updates of the list and of all compile controls after a bundle was chosen. */
  const taken = (tab, bundles, other, chosen, now) => {
    const bundle = bundles.find(({ title }) => title === chosen);
    const values = bundle?.values ?? [true, ...now.slice(1)];
    bundle ? custom.delete(tab) : custom.set(tab, key(values));
    return [update({ info: (bundle ?? other).help }), ...values];
  };

  return { shown, taken };
})();
