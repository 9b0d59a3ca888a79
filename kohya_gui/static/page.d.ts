// What tsc cannot see in the scripts of the page themselves (see jsconfig.json). Browsers never load this file.

/** What later scripts add to `Studio`. */
interface StudioOfLaterScripts {
  // media.js
  isClip(name: string): boolean;
  lengthOf(clip: any): string;
  media(src: string, alt: string, attributes?: Record<string, any>): any;
  turn(old: any, src: string, alt: string, attributes?: Record<string, any>): any;
  together(clips: HTMLVideoElement[]): void;
  watchIn(element: HTMLElement): void;
  // page.js
  copy(text: string, element: HTMLElement): Promise<void>;
  openTab(name: string): void;
  // form/search.js
  searchSettings(words?: string): Promise<void>;
  // form/browse.js, tools/publish.js
  browse(element: HTMLElement, name: string, then?: (path: string) => void): void;
  publish(id: number): Promise<void>;
  // dataset/
  dataset: any;
  // tools/captions.js
  caption(folder: string, images?: string[]): Promise<void>;
  // tools/images.js
  editImages(folder: string, images?: string[]): Promise<void>;
  // generate/
  chooseLora(family: string, add: (path: string) => void): Promise<void>;
  canRate(candidates: { images: (string | null)[] }[]): boolean;
  rate(candidates: { name: string; images: (string | null)[] }[], titles: string[]): void;
  compareCheckpoints(run: any): Promise<void>;
  tryRun(run: any): Promise<void>;
  useInGenerate(route: string): Promise<void>;
  useAsRegularisation(folder: string, names: string[], prompt: string): Promise<void>;
  // runs/
  LIVING: string[];
  board: any;
  listeners: (() => void)[];
  beat(): void;
  choose(id: number, ...more: any[]): any;
  goTo(tab: string, run?: number): void;
  load(run: any): Promise<void>;
  notifies(): boolean;
  removeQueued(...values: any[]): any;
  setNotify(on: boolean): Promise<string>;
  showOlder(...values: any[]): any;
  shown(...values: any[]): any;
}

declare var Fields: Record<"jump" | "unfold" | "panelsOf" | "enter" | "submit" | "set", (...values: any[]) => any>;
declare const uPlot: any;

interface Window {
  checkPrompts(tab: string): void;
  gradio_config: any;
}

// The elements of the page are HTML elements, and events come from elements.

interface ParentNode {
  querySelector<K extends keyof HTMLElementTagNameMap>(selectors: K): HTMLElementTagNameMap[K] | null;
  querySelector(selectors: string): any;
  querySelectorAll<K extends keyof HTMLElementTagNameMap>(selectors: K): NodeListOf<HTMLElementTagNameMap[K]>;
  querySelectorAll(selectors: string): NodeListOf<any>;
}
interface Element {
  blur(): void;
  hidden: boolean;
}
interface EventTarget {
  checked?: boolean;
  closest?(selectors: string): any;
  matches?(selectors: string): boolean;
  type?: string;
  value?: any;
}
interface ChildNode {
  hidden?: boolean;
}
interface PerformanceEntry {
  readonly type?: string;
}
