import { useId } from "preact/hooks";

interface ChoiceProps<V extends string> {
  label: string;
  value: V;
  options: readonly (readonly [value: V, text: string])[];
  onChange: (value: V) => void;
}

export function Choice<V extends string>({ label, value, options, onChange }: ChoiceProps<V>) {
  const id = useId();
  return (
    <span class="field">
      <label for={id}>{label}</label>
      <select id={id} value={value} onChange={(event) => onChange(event.currentTarget.value as V)}>
        {options.map(([option, text]) => (
          <option value={option}>{text}</option>
        ))}
      </select>
    </span>
  );
}

interface InputProps {
  label: string;
  value: string;
  onInput: (value: string) => void;
  placeholder?: string;
  /** Suggestions. */
  known?: readonly string[];
  digits?: boolean;
}

export function Input({ label, value, onInput, placeholder = "", known = [], digits = false }: InputProps) {
  const id = useId();
  return (
    <span class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        type="search"
        inputMode={digits ? "numeric" : "text"}
        value={value}
        placeholder={placeholder}
        maxLength={512}
        autocomplete="off"
        spellcheck={false}
        {...(known.length > 0 ? { list: `${id}-known` } : {})}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
      {known.length > 0 && (
        <datalist id={`${id}-known`}>
          {known.slice(0, 200).map((text) => (
            <option value={text} />
          ))}
        </datalist>
      )}
    </span>
  );
}

export function Password({ label, value, onInput }: Pick<InputProps, "label" | "value" | "onInput">) {
  const id = useId();
  return (
    <span class="field">
      <label for={id}>{label}</label>
      <input
        id={id}
        type="password"
        value={value}
        autocomplete="current-password"
        onInput={(event) => onInput(event.currentTarget.value)}
      />
    </span>
  );
}

export function Toggle({ label, on, onChange }: { label: string; on: boolean; onChange: (on: boolean) => void }) {
  return (
    <label class="toggle">
      <input type="checkbox" checked={on} onChange={(event) => onChange(event.currentTarget.checked)} />
      {label}
    </label>
  );
}
