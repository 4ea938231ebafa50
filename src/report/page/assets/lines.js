// Lines over a common axis: the first column is the position.
kinds.lines = (figure) => {
  const { dataset } = figure;
  const [at, ...columns] = parsed(figure, "data");
  const colours = inks();
  const titles = names(figure).slice(1).map(short);
  const area = Number(dataset.area ?? -1);
  const lines = columns.map((values, series) => ({
    values,
    colour: colours[series % colours.length],
    dash: DASHES[series % DASHES.length],
    stepped: dataset.stepped !== undefined,
    fill: series === area ? `color-mix(in srgb, ${colours[series]} 25%, transparent)` : undefined,
    points: at.length <= 40,
  }));
  // A limit far above all values would make them a flat line.
  const limits = (parsed(figure, "limits")?.[0] ?? []).filter((limit) => limit <= 3 * extent(columns.flat())[1]);
  const all = [...columns.flat(), ...limits];
  if (dataset.least !== undefined) all.push(Number(dataset.least));
  const y = range(all, dataset.yLog !== undefined);
  const [first, last] = extent(at);
  const x = [Number(dataset.xFrom ?? first), Number(dataset.xTo ?? last)];
  // uPlot takes the ends of the axis from the data: both ends have a row.
  if (x[0] < first) for (const values of [at, ...columns]) values.unshift(values === at ? x[0] : null);
  // A step holds to the end of the axis.
  const end = (values) => (dataset.stepped === undefined ? null : values.at(-1));
  if (x[1] > last) for (const values of [at, ...columns]) values.push(values === at ? x[1] : end(values));
  const before = x[0] < first ? 1 : 0;
  const rows = at.length - before - (x[1] > last ? 1 : 0);
  return {
    x,
    y: dataset.yTop === undefined ? y : [0, Number(dataset.yTop)],
    at,
    lines,
    rows,
    place: (row) => [at[row + before], null],
    legend: [...lines.map((line, series) => ({ name: titles[series], colour: line.colour, dash: line.dash })), ...legendOfLimits(limits)],
    paint: (u, context) => paintLimits(u, context, limits),
  };
};
