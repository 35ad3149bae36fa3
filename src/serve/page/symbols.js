// TeX commands that stand for one character.

function table(text) {
  return new Map(text.trim().split(/\s+/).map((pair) => pair.split("=")));
}

/** Letters: written as identifiers. */
export const LETTERS = table(`
  alpha=α beta=β gamma=γ delta=δ epsilon=ϵ varepsilon=ε zeta=ζ eta=η theta=θ vartheta=ϑ iota=ι kappa=κ lambda=λ mu=μ
  nu=ν xi=ξ pi=π varpi=ϖ rho=ρ varrho=ϱ sigma=σ varsigma=ς tau=τ upsilon=υ phi=ϕ varphi=φ chi=χ psi=ψ omega=ω
  Gamma=Γ Delta=Δ Theta=Θ Lambda=Λ Xi=Ξ Pi=Π Sigma=Σ Upsilon=Υ Phi=Φ Psi=Ψ Omega=Ω
  ell=ℓ hbar=ℏ imath=ı jmath=ȷ Re=ℜ Im=ℑ wp=℘ aleph=ℵ infty=∞ emptyset=∅ varnothing=∅ partial=∂ nabla=∇ top=⊤ bot=⊥
  angle=∠ triangle=△ degree=° prime=′ ldots=… dots=… cdots=⋯ vdots=⋮ ddots=⋱ dotsc=… dotsb=⋯ checkmark=✓ square=□
  blacksquare=■ qed=□ S=§ pounds=£
`);

/** Operators and relations. */
export const OPERATORS = table(`
  cdot=⋅ times=× div=÷ pm=± mp=∓ ast=∗ star=⋆ circ=∘ bullet=∙ oplus=⊕ ominus=⊖ otimes=⊗ odot=⊙ wedge=∧ vee=∨ land=∧
  lor=∨ cap=∩ cup=∪ setminus=∖ neg=¬ lnot=¬ dagger=† amalg=⨿ uplus=⊎ sqcup=⊔ sqcap=⊓
  leq=≤ le=≤ geq=≥ ge=≥ neq=≠ ne=≠ ll=≪ gg=≫ approx=≈ sim=∼ simeq=≃ cong=≅ equiv=≡ propto=∝ prec=≺ succ=≻ preceq=⪯
  succeq=⪰ asymp=≍ doteq=≐ coloneqq=≔ in=∈ notin=∉ ni=∋ subset=⊂ supset=⊃ subseteq=⊆ supseteq=⊇ subsetneq=⊊ mid=∣
  nmid=∤ parallel=∥ perp=⊥ vdash=⊢ models=⊨ forall=∀ exists=∃ nexists=∄ therefore=∴ because=∵ leqslant=⩽ geqslant=⩾
  lesssim=≲ gtrsim=≳ triangleq=≜
  to=→ rightarrow=→ leftarrow=← gets=← leftrightarrow=↔ Rightarrow=⇒ Leftarrow=⇐ Leftrightarrow=⇔ iff=⟺ implies=⟹
  impliedby=⟸ mapsto=↦ longrightarrow=⟶ longleftarrow=⟵ Longrightarrow=⟹ longmapsto=⟼ uparrow=↑ downarrow=↓ Uparrow=⇑
  Downarrow=⇓ hookrightarrow=↪ rightharpoonup=⇀ rightleftharpoons=⇌ nearrow=↗ searrow=↘ leadsto=⇝ colon=: vert=| Vert=‖
`);

/** Operators whose limits stand below and above them in displayed formulas. */
export const LARGE = table(`
  sum=∑ prod=∏ coprod=∐ bigcup=⋃ bigcap=⋂ bigoplus=⨁ bigotimes=⨂ bigvee=⋁ bigwedge=⋀ bigsqcup=⨆
`);

export const INTEGRALS = table("int=∫ iint=∬ iiint=∭ oint=∮");

/** Fences, as they follow \\left and \\right or stand alone. */
export const FENCES = table(`
  langle=⟨ rangle=⟩ lfloor=⌊ rfloor=⌋ lceil=⌈ rceil=⌉ lvert=| rvert=| lVert=‖ rVert=‖ lbrace={ rbrace=} lbrack=[ rbrack=]
  {={ }=} |=‖
`);

export const FUNCTIONS = new Set((
  "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth exp log ln lg det dim ker deg gcd hom arg Pr"
).split(" "));

/** Functions whose subscript stands below them in displayed formulas. */
export const LIMITS = new Set("lim limsup liminf max min sup inf argmax argmin".split(" "));

export const ACCENTS = table(`
  hat=^ widehat=^ bar=¯ overline=¯ tilde=~ widetilde=~ vec=→ dot=˙ ddot=¨ acute=´ grave=\u0060 check=ˇ breve=˘
  overrightarrow=→ overleftarrow=← overbrace=⏞
`);

/** Spaces, in em. */
export const SPACES = new Map([
  [",", "0.167em"], [":", "0.222em"], [">", "0.222em"], [";", "0.278em"], ["!", "-0.167em"], [" ", "0.25em"],
  ["quad", "1em"], ["qquad", "2em"], ["enspace", "0.5em"], ["thinspace", "0.167em"],
]);

/** First code points of the alphabets in Unicode's mathematical block: capitals, small letters, digits. */
export const ALPHABETS = new Map([
  ["mathbf", [0x1d400, 0x1d41a, 0x1d7ce]], ["boldsymbol", [0x1d468, 0x1d482, 0x1d7ce]], ["bm", [0x1d468, 0x1d482, 0x1d7ce]],
  ["mathcal", [0x1d49c, 0x1d4b6, 0]], ["mathscr", [0x1d49c, 0x1d4b6, 0]], ["mathbb", [0x1d538, 0x1d552, 0x1d7d8]],
  ["mathfrak", [0x1d504, 0x1d51e, 0]], ["mathsf", [0x1d5a0, 0x1d5ba, 0x1d7e2]], ["mathtt", [0x1d670, 0x1d68a, 0x1d7f6]],
]);

/** Letters that Unicode has outside of the block, by the code point they would have in it. */
export const ELSEWHERE = new Map([
  [0x1d49d, "ℬ"], [0x1d4a0, "ℰ"], [0x1d4a1, "ℱ"], [0x1d4a3, "ℋ"], [0x1d4a4, "ℐ"], [0x1d4a7, "ℒ"], [0x1d4a8, "ℳ"],
  [0x1d4ad, "ℛ"], [0x1d4ba, "ℯ"], [0x1d4bc, "ℊ"], [0x1d4c4, "ℴ"], [0x1d53a, "ℂ"], [0x1d53f, "ℍ"], [0x1d545, "ℕ"],
  [0x1d547, "ℙ"], [0x1d548, "ℚ"], [0x1d549, "ℝ"], [0x1d551, "ℤ"], [0x1d506, "ℭ"], [0x1d50b, "ℌ"], [0x1d50c, "ℑ"],
  [0x1d515, "ℜ"], [0x1d51d, "ℨ"],
]);

/** Environments: the fences around their cells, and the alignment of columns. */
export const ENVIRONMENTS = new Map([
  ["matrix", ["", "", "center"]], ["pmatrix", ["(", ")", "center"]], ["bmatrix", ["[", "]", "center"]],
  ["Bmatrix", ["{", "}", "center"]], ["vmatrix", ["|", "|", "center"]], ["Vmatrix", ["‖", "‖", "center"]],
  ["smallmatrix", ["", "", "center"]], ["array", ["", "", "center"]], ["cases", ["{", "", "left"]],
  ["aligned", ["", "", "pairs"]], ["align", ["", "", "pairs"]], ["align*", ["", "", "pairs"]], ["split", ["", "", "pairs"]],
  ["equation", ["", "", "center"]], ["equation*", ["", "", "center"]], ["gathered", ["", "", "center"]],
  ["gather", ["", "", "center"]], ["gather*", ["", "", "center"]],
]);
