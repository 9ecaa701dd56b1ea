/** The latest items, newest first. It never changes: `with` makes another one. */
export class Ring<T> {
  constructor(
    private readonly most: number,
    readonly items: readonly T[] = [],
  ) {}

  /** Adds items, oldest first; forgets the oldest beyond the bound. */
  with(items: readonly T[]): Ring<T> {
    const newest = items.slice(-this.most).reverse();
    return new Ring(this.most, [...newest, ...this.items.slice(0, this.most - newest.length)]);
  }
}
